"""The compile stage in a sandboxed child: every kernel that forward launches is compiled for a GPU; none runs, none is needed.

The child stops at LLVM's intermediate code, where types, shapes, layouts and shared memory are settled. What follows, PTX and
its assembly, adds no refusals of its own and takes other programs. Imports torch and triton, without the interpreter.
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
from windtunnel.verify.kernel.child_autotune import pick_configurations
from windtunnel.verify.kernel.child_load import Wrong, load_candidate, said, stand_in_for_cuda
from windtunnel.verify.kernel.child_scratch import own_scratch
from windtunnel.verify.kernel.child_tensors import from_head, to_tensor
from windtunnel.verify.sandbox.channel import note

PTX_VERSION = 87
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
    """message: source, capability (90 for Hopper), init, dtypes, inputs, arguments. Returns the kernels with their sizes."""
    torch.set_num_threads(1)
    compiler = Compiler(message["capability"])
    note("compile")
    stand_in_for_cuda()
    own_scratch()
    pick_configurations(random.Random(message["seed"]).choice)
    try:
        with compiler.installed():
            made = load_candidate(message["source"]).ModelNew
            for number, dtype in enumerate(message["dtypes"]):
                compiler.depth = len(STAGES) if number == 0 else 1
                _forward(made, message, buffers, getattr(torch, dtype), dtype)
    except Wrong as wrong:
        return {"wrong": {"reason": wrong.reason, "message": wrong.message}}, []
    return {"kernels": compiler.done}, []


def _forward(made: Any, message: dict[str, Any], buffers: Sequence[Buffer], dtype: torch.dtype, name: str) -> None:
    try:
        model = made(*[unplain(value) for value in message["init"]]).to(dtype)
        fresh = iter([to_tensor(from_head(head, buffers[head["at"]])) for head in message["inputs"]])
        arguments = [next(fresh) if entry is None else unplain(entry["value"]) for entry in message["arguments"]]
        cast = [v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in arguments]
        with torch.no_grad():
            model(*cast)
    except _NotCompiled as error:
        raise Wrong(error.reason, f"{error} ({name}).") from None
    except Exception as error:
        # Kernels do nothing here, so that forward may well stumble later: the tiny stage judges that.
        if not isinstance(error, triton.compiler.errors.CompilationError):
            return
        raise Wrong("compile-error", f"a kernel does not compile: {said(error)} ({name}).") from None


class _NotCompiled(Exception):
    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


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
    """Compiles where Triton would compile, then launches nothing. depth: how many of STAGES to go through."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)
        self.shared = SHARED_BYTES.get(capability, max(SHARED_BYTES.values()))
        self.depth = len(STAGES)
        self.done: dict[str, dict[str, int]] = {}

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
        name = function.__name__
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
            raise _NotCompiled("compile-error", f"kernel {name} does not compile: {said(error)}") from None
        steps: dict[str, Any] = {}
        # Else it asks ptxas, another program.
        options = dataclasses.replace(options, ptx_version=PTX_VERSION)
        backend.add_stages(steps, options, source.language)
        metadata: dict[str, Any] = {"target": self.target, **options.__dict__}
        for stage in STAGES[: self.depth]:
            try:
                module = steps[stage](module, metadata)
            except Exception as error:
                raise _NotCompiled("compile-error", f"kernel {name} does not compile ({stage}): {said(error)}") from None
        shared = int(metadata.get("shared") or 0)
        if shared > self.shared:
            raise _NotCompiled(
                "shared-memory",
                f"kernel {name} needs {shared:,} bytes of shared memory; a block has {self.shared:,}. Use smaller blocks",
            )
        self.done[name] = {"shared": max(shared, self.done.get(name, {}).get("shared", 0)), "warps": int(options.num_warps)}
