"""The compile stage in a sandboxed child: every kernel that forward launches is compiled for a GPU; none runs, none is needed.

The child stops at LLVM's intermediate code, where types, shapes, layouts and shared memory are settled. What follows, PTX and
its assembly, takes other programs and refuses little: modifiers that do not go together, such as ".cg" with "evict_first".
Imports torch and triton, without the interpreter.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import triton
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource, make_backend
from triton.runtime import driver, jit

from windtunnel.verify.kernel.arrays import Buffer, unplain
from windtunnel.verify.kernel.child.autotune import MISFITS, Evenly, Misfit, pick_configurations
from windtunnel.verify.kernel.child.load import Wrong, kernel_place, laid_to_candidate, load_candidate, said, stand_in_for_cuda
from windtunnel.verify.kernel.child.scratch import own_scratch
from windtunnel.verify.kernel.child.tensors import from_head, to_tensor
from windtunnel.verify.kernel.child.watch import Watch
from windtunnel.verify.kernel.child.work import Places
from windtunnel.verify.sandbox.channel import note

PTX_VERSION = 87
LONGEST_LINE, LONGEST_WORDS = 120, 400  # characters of what Triton says of a kernel
STAGES = ("ttir", "ttgir", "llir")
SHARED_BYTES = {
    80: 166_912,
    86: 101_376,
    89: 101_376,
    90: 232_448,
    100: 232_448,
    120: 101_376,
}  # CUDA programming guide, per block


def main(message: dict[str, Any], buffers: Sequence[Buffer]) -> tuple[dict[str, Any], list[Buffer]]:
    """message: source, capability (90 for Hopper), dtypes, inplace, forms (label, training, init, inputs, arguments).

    Returns the kernels with their sizes, the places of those compiled, and what forward raised first, which is not judged here:
    'kernels', 'compiled', 'stumbled'.
    """
    torch.set_num_threads(1)
    compiler = Compiler(message["capability"])
    stand_in_for_cuda()
    own_scratch()
    pick_configurations(Evenly(random.Random(message["seed"])))
    try:
        with compiler.installed():
            note("compile")  # only now: who is killed before has run nothing of the candidate
            with laid_to_candidate("import-failed", "the module cannot be used"):
                made = load_candidate(message["source"]).ModelNew
            stumbled: list[str] = []
            for form in message["forms"]:
                for dtype in message["dtypes"]:
                    compiler.again = form is message["forms"][0]
                    compiler.depth = len(STAGES) if dtype == message["dtypes"][0] else 1
                    text = _forward(made, form, message["inplace"], buffers, dtype)
                    stumbled += [f"{text} ({form['label']}, {dtype})"] if text else []
    except Wrong as wrong:
        return {"wrong": {"reason": wrong.reason, "message": wrong.message}}, []
    return {"kernels": compiler.done, "compiled": sorted(compiler.places), "stumbled": stumbled[0] if stumbled else ""}, []


def _forward(made: Any, form: dict[str, Any], inplace: list[int], buffers: Sequence[Buffer], dtype: str) -> str:
    """One call, as the tiny stage makes it, so that nothing tells the two apart. What it raised, '' for nothing.

    Raises:
        Wrong: a kernel cannot be compiled.
    """
    kind, places = getattr(torch, dtype), Places(inplace)
    fresh = iter([to_tensor(from_head(head, buffers[head["at"]])) for head in form["inputs"]])
    arguments: list[Any] = []
    for position, entry in enumerate(form["arguments"]):
        value = next(fresh) if entry is None else unplain(entry["value"])
        if isinstance(value, torch.Tensor):
            value = places.put(position, value.to(kind) if value.is_floating_point() else value)
        arguments.append(value)
    try:
        model = made(*[unplain(value) for value in form["init"]]).to(kind)
        model.train(form["training"])
        with torch.set_grad_enabled(form["training"]), Watch():
            model(*arguments)
    except _NotCompiled as error:
        raise Wrong(error.reason, f"{error} ({dtype}).") from None
    except triton.compiler.errors.CompilationError as error:
        raise Wrong("compile-error", f"a kernel does not compile: {why(error)} ({dtype}).") from None
    except BaseException as error:
        # Kernels do nothing here, so that forward may well stumble later: the tiny stage judges that, and what was not launched
        # by then has not been compiled.
        return said(error)
    return ""


def why(error: BaseException) -> str:
    """What Triton says of the innermost error, with the line that it is about; its own text begins with all lines before."""
    while isinstance(error.__cause__, triton.compiler.errors.CompilationError):
        error = error.__cause__
    if not isinstance(error, triton.compiler.errors.CompilationError):
        return said(error)
    lines, number = (error.src or "").splitlines(), getattr(error.node, "lineno", 0)
    at = f"in `{lines[number - 1].strip()[:LONGEST_LINE]}`: " if 0 < number <= len(lines) else ""
    cause = error.__cause__
    words = error.error_message or (said(cause) if cause is not None else type(error).__name__)
    return at + " ".join(words.split())[:LONGEST_WORDS]


class _NotCompiled(Exception):
    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class _TooMuch(_NotCompiled, Misfit):
    """Where there is a choice of configurations, another one may do."""


class _Device:
    """Stands in for a driver: says which GPU code is to be made for."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    def get_current_target(self) -> GPUTarget:
        """The GPU."""
        return self.target

    def get_current_device(self) -> int:
        """The first."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """None is needed."""
        return 0


class Compiler:
    """Compiles where Triton would compile, then launches nothing. depth: how many of STAGES to go through, all for a kernel that
    comes for the first time. again: compile anew for other arguments too."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)
        self.shared = SHARED_BYTES.get(capability, max(SHARED_BYTES.values()))
        self.depth = len(STAGES)
        self.again = True
        self.done: dict[str, dict[str, int]] = {}
        self.places: set[str] = set()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Triton's own way of compiling, changed while this lasts."""
        driver.set_active(_Device(self.target))
        original, whole = jit.JITFunction._do_compile, self

        def compile_only(
            function: Any, key: Any, signature: Any, device: Any, constexprs: Any, options: Any, attrs: Any, *_: Any
        ) -> None:
            whole.compile(function, signature, constexprs, options, attrs)

        jit.JITFunction._do_compile = compile_only
        try:
            yield
        finally:
            jit.JITFunction._do_compile = original

    def compile(self, function: Any, signature: Any, constexprs: Any, options: Any, attrs: Any) -> None:
        name, place = function.__name__, kernel_place(function)
        if place in self.places and not self.again:
            return
        depth = self.depth if place in self.places else len(STAGES)
        backend = make_backend(self.target)
        source = ASTSource(function, signature, constexprs, attrs)
        context = ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        try:
            module = source.make_ir(
                self.target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context
            )
        except Exception as error:
            kind = _TooMuch if isinstance(error, MISFITS) else _NotCompiled
            raise kind("compile-error", f"kernel {name} does not compile: {why(error)}") from None
        steps: dict[str, Any] = {}
        # Else it asks ptxas, another program.
        options = dataclasses.replace(options, ptx_version=PTX_VERSION)
        backend.add_stages(steps, options, source.language)
        metadata: dict[str, Any] = {"target": self.target, **options.__dict__}
        for stage in STAGES[:depth]:
            try:
                module = steps[stage](module, metadata)
            except Exception as error:
                raise _NotCompiled("compile-error", f"kernel {name} does not compile ({stage}): {said(error)}") from None
        shared = int(metadata.get("shared") or 0)
        if shared > self.shared:
            raise _TooMuch(
                "shared-memory",
                f"kernel {name} needs {shared:,} bytes of shared memory; a block has {self.shared:,}. Use smaller blocks",
            )
        self.places.add(place)
        self.done[name] = {"shared": max(shared, self.done.get(name, {}).get("shared", 0)), "warps": int(options.num_warps)}
