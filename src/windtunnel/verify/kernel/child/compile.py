"""The compile stage in a sandboxed child: every kernel that forward launches is compiled for a GPU; none runs, none is needed.

Where no GPU is to run them the child stops at LLVM's intermediate code, where types, shapes, layouts and shared memory are
settled. What follows, PTX and its assembly, takes other programs and refuses little: modifiers that do not go together, such as
".cg" with "evict_first". For a GPU it goes on to the end, and hands Triton's own files over.
Imports torch and triton, without the interpreter.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
import resource
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import triton
from triton._C.libtriton import ir, llvm
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource, make_backend
from triton.runtime import driver, jit

from windtunnel.verify.kernel.arrays import Buffer
from windtunnel.verify.kernel.child.build import argument, build
from windtunnel.verify.kernel.child.load import Wrong, said
from windtunnel.verify.kernel.child.replay import MISFITS, Misfit, quietly
from windtunnel.verify.kernel.plan import Choice, Launch, Operation, Plan, Tensor
from windtunnel.verify.kernel.plan.schema import BYTES
from windtunnel.verify.sandbox.channel import note

PTX_VERSION = 87
LONGEST_LINE, LONGEST_WORDS = 120, 400  # characters of what Triton says of a kernel
STAGES = ("ttir", "ttgir", "llir")
# CUDA programming guide, per block, by compute capability.
SHARED_BYTES = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}


def main(message: dict[str, Any], buffers: Sequence[Buffer]) -> tuple[dict[str, Any], list[Buffer]]:
    """Compile the kernels of plans that the judge has checked.

    message: plans (texts), their dtypes and labels, capability (90 for Hopper), orders (of each plan [number of a step with a
    choice, configurations in the order of trying]), wanted (of each plan's choices how many that fit), others (those in orders
    alone, as many as fit, the rest of the plans being compiled already), binary (whether to go on to the end), kernel_seconds (of
    the CPU, for one kernel).

    Returns:
        The kernels with their sizes, 'kernels', of each plan [step, configurations that fit, ones that do not],
        'configurations', and key and name of each file made, 'files', with their bytes; or what is 'wrong'.
    """
    torch.set_num_threads(1)
    compiler = Compiler(message["capability"], binary=message["binary"], seconds=message["kernel_seconds"])
    configurations = []
    note("compile")
    try:
        with compiler.installed(), quietly():
            for number, (text, dtype) in enumerate(zip(message["plans"], message["dtypes"], strict=True)):
                # Other forms differ in sizes alone, mostly: what compiles for the first is compiled for them only where it is
                # new.
                compiler.again = number == 0
                compiler.depth = len(STAGES) if dtype == message["dtypes"][0] else 1
                work = _Work(
                    Plan.model_validate_json(text), message["labels"][number], binary=message["binary"], others=message["others"]
                )
                configurations.append(work.compile(dict(message["orders"][number]), message["wanted"][number]))
    except Wrong as wrong:
        return {"wrong": {"reason": wrong.reason, "message": wrong.message}}, []
    files = sorted(_files()) if message["binary"] else []
    folder = triton.knobs.cache.dir
    reply = {"kernels": compiler.done, "files": files, "configurations": configurations}
    return reply, [Path(folder, key, name).read_bytes() for key, name in files]


def _files() -> Iterator[tuple[str, str]]:
    """Yield what Triton reads again when the same is to be compiled: in its folder, binaries and what says what they are."""
    for path in Path(triton.knobs.cache.dir).glob("*/*"):
        if path.suffix in (".cubin", ".json") and not path.name.startswith("__grp__"):
            yield path.parent.name, path.name


class _Typed:
    """What the compiler has to know of a tensor: its dtype, and where it begins."""

    def __init__(self, tensor: Tensor) -> None:
        self.dtype = getattr(torch, tensor.dtype)
        self.shape, self.strides = tensor.shape, tensor.stride
        self.start = tensor.offset * BYTES[tensor.dtype]

    def data_ptr(self) -> int:
        """Return where it begins, as if its buffer began at a multiple of 512."""
        return self.start

    def stride(self) -> tuple[int, ...]:
        """Return the strides in elements."""
        return self.strides


class _Work:
    """The compiling of one plan. label: for messages. binary, others: as in `main`."""

    def __init__(self, plan: Plan, label: str, *, binary: bool, others: bool) -> None:
        self.plan, self.label, self.binary, self.others = plan, label, binary, others
        self.kernels = build(plan.kernels)

    def compile(self, orders: Mapping[int, Sequence[int]], wanted: int) -> list[tuple[int, list[int], list[int]]]:
        """Compile every launch; of several configurations the first ones, as many as are wanted, that the GPU has room for.

        Raises:
            Wrong: a kernel cannot be compiled.
        """
        found = []
        for number, step in enumerate(self.plan.steps):
            if not isinstance(step, Choice):
                if not self.others:
                    self._alone(step)
            elif number in orders:
                found.append((number, *self._chosen(step, orders[number], wanted)))
        return found

    def _chosen(self, step: Choice, order: Sequence[int], wanted: int) -> tuple[list[int], list[int]]:
        fits: list[int] = []
        misfits: list[int] = []
        for at in order:
            if len(fits) >= wanted and not self.others:
                break
            try:
                self._way(step.choice[at])
                fits.append(at)
            except _TooMuch as error:
                misfits.append(at)
                if len(misfits) == len(order) and not self.others:
                    raise Wrong(error.reason, f"{error} ({self.label}).") from None
        return fits, misfits

    def _alone(self, step: Launch | Operation) -> None:
        try:
            self._way([step])
        except _TooMuch as error:
            raise Wrong(error.reason, f"{error} ({self.label}).") from None

    def _way(self, way: Sequence[Launch | Operation]) -> None:
        for step in way:
            if isinstance(step, Launch):
                self._launch(step)

    def _launch(self, launch: Launch) -> None:
        values = {name: argument(value, self.kernels, _Typed) for name, value in launch.arguments.items()}
        options = {name: value for name, value in launch.options.items() if value is not None}
        if isinstance(warps := options.get("num_warps"), int) and not self.binary:
            # Computed from a tiny size it may be none or three, and says nothing of the size that it is meant for.
            options["num_warps"] = 1 << max(warps - 1, 0).bit_length()
        try:
            # Triton's own way, up to where it would launch: it specialises by alignment and by values, as on a GPU.
            self.kernels[launch.launch].run(grid=launch.grid, warmup=True, **values, **options)
        except _TooMuch:
            raise
        except _NotCompiled as error:
            raise Wrong(error.reason, f"{error} ({self.label}).") from None
        except Exception as error:  # a compiler raises errors of many kinds
            raise Wrong("compile-error", f"a kernel does not compile: {why(error)} ({self.label}).") from None


def why(error: BaseException) -> str:
    """Return what Triton says of the innermost error, with the line that it is about.

    Its own text begins with all lines before.
    """
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


@contextmanager
def _in_time(name: str, seconds: float | None) -> Iterator[None]:
    """Let a kernel take so many seconds of the CPU; then this process ends with SIGXCPU as its exit code. None: no limit.

    Nothing softer reaches what is deep in LLVM. ptxas, which is another program, inherits the limit and is ended by itself.

    Raises:
        _TooMuch: ptxas took longer.
    """
    if seconds is None:
        yield
        return
    note(f"compile: {name}")
    # The first process of a namespace is not ended by a signal that it has no handler for, and one of Python's would wait.
    libc = ctypes.CDLL(None)
    libc.signal(signal.SIGXCPU, ctypes.cast(libc._exit, ctypes.c_void_p))
    # The kernel counts whole seconds of all the process has used: the limit begins where that stands.
    began, (soft, hard) = _cpu_seconds(), resource.getrlimit(resource.RLIMIT_CPU)
    own = resource.getrusage(resource.RUSAGE_SELF)
    most = math.ceil(own.ru_utime + own.ru_stime + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    try:
        yield
    except Exception:  # raised again, but where it is the assembler that was ended
        if _cpu_seconds() - began >= seconds:
            raise _TooMuch("timeout", f"kernel {name} takes more than {seconds:.0f} s to compile") from None
        raise
    finally:
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def _cpu_seconds() -> float:
    """Return the CPU's seconds of this process, and of those that it waited for."""
    return sum(
        used.ru_utime + used.ru_stime for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


class _Device:
    """Stands in for a driver: says which GPU code is to be made for."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    def get_current_target(self) -> GPUTarget:
        """Return the GPU that is compiled for."""
        return self.target

    def get_current_device(self) -> int:
        """Return the number of the first GPU, whichever it may be."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """Return a stream; none is needed."""
        return 0


class Compiler:
    """Compiles where Triton would compile, then launches nothing.

    binary: go on to the end. seconds: of the CPU that one kernel may take; None: as many as it likes.

    Attributes:
        depth: how many of STAGES to go through, all for a kernel that comes for the first time.
        again: compile anew for other arguments too.
    """

    def __init__(self, capability: int, *, binary: bool = False, seconds: float | None = None) -> None:
        self.binary, self.seconds = binary, seconds
        self.target = GPUTarget("cuda", capability, 32)
        self.shared = SHARED_BYTES.get(capability, max(SHARED_BYTES.values()))
        self.depth = len(STAGES)
        self.again = True
        self.done: dict[str, dict[str, int]] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Put this in the place of Triton's own way of compiling, changed while this lasts."""
        driver.set_active(_Device(self.target))
        original, whole = jit.JITFunction._do_compile, self

        def compile_only(
            function: Any, key: Any, signature: Any, device: Any, constexprs: Any, options: Any, attrs: Any, *_: Any
        ) -> None:
            with _in_time(function.__name__, whole.seconds):
                whole.compile(function, signature, constexprs, options, attrs)

        def compile_whole(function: Any, *rest: Any) -> Any:
            try:
                with _in_time(function.__name__, whole.seconds):
                    made = original(function, *rest)
            except _TooMuch:
                raise
            except Exception as error:
                kind = _TooMuch if isinstance(error, MISFITS) else _NotCompiled
                raise kind("compile-error", f"kernel {function.__name__} does not compile: {why(error)}") from None
            whole.noted(function.__name__, int(made.metadata.shared), int(made.metadata.num_warps))
            return made

        jit.JITFunction._do_compile = compile_whole if self.binary else compile_only
        optimize = llvm.optimize_module
        if not self.binary:
            llvm.optimize_module = lambda *_: None  # it refuses nothing, takes a third of the time, and no code comes of it here
        try:
            yield
        finally:
            jit.JITFunction._do_compile, llvm.optimize_module = original, optimize

    def compile(self, function: Any, signature: Any, constexprs: Any, options: Any, attrs: Any) -> None:
        """Compile a kernel for these arguments, in the place of Triton's launcher. Raises Wrong and what the compiler raises."""
        name = function.__name__
        if name in self.done and not self.again:
            return
        depth = self.depth if name in self.done else len(STAGES)
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
        self.noted(name, int(metadata.get("shared") or 0), int(options.num_warps))

    def noted(self, name: str, shared: int, warps: int) -> None:
        """Keep what a kernel needs. Raises _TooMuch where a block of the GPU has less."""
        if shared > self.shared:
            raise _TooMuch(
                "shared-memory",
                f"kernel {name} needs {shared:,} bytes of shared memory; a block has {self.shared:,}. Use smaller blocks",
            )
        self.done[name] = {"shared": max(shared, self.done.get(name, {}).get("shared", 0)), "warps": warps}
