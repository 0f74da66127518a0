"""The four kinds of workers that judge kernels, and what each has imported before any candidate.

One interprets and records, one compiles, one carries plans out on a GPU, and one there computes what is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windtunnel.verify.kernel.gpu_seen import SeenGPU, seen_gpu
from windtunnel.verify.sandbox import Sandbox

PRELOAD = (
    "torch",
    "triton",
    "triton.language",
    "triton.runtime.interpreter",
    "windtunnel.verify.kernel.child.record",
    "windtunnel.verify.kernel.child.tiny",
    "windtunnel.verify.kernel.child.reference",
    "windtunnel.verify.kernel.child.warm",
)
COMPILER_PRELOAD = (
    "torch",
    "triton",
    "triton.language",
    "windtunnel.verify.kernel.child.compile",
    "windtunnel.verify.kernel.child.record",
    "windtunnel.verify.kernel.child.warm_compile",
)
# Watching PyTorch's calls and counting its operations import the second one, a second of work.
TORCH = ("torch", "torch._dynamo")
# Each work queue of a context, and each for copies, is made and taken down with it: one stream needs one of each.
ONE_QUEUE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "CUDA_DEVICE_MAX_COPY_CONNECTIONS": "1"}
# Of what a compiler makes only the binary is read again.
BINARIES_ONLY = {"TRITON_STORE_BINARY_ONLY": "1"}


def has_gpu(index: int = 0) -> bool:
    """Return whether this process may use an NVIDIA GPU of that number, as CUDA counts them here."""
    return seen_gpu(index) is not None


def kernel_sandbox() -> Sandbox:
    """Return a warm worker with torch and Triton's interpreter loaded. A context manager."""
    return Sandbox(preload=PRELOAD, environment={"TRITON_INTERPRET": "1"})


def compiler_sandbox(*, binary: bool | None = None) -> Sandbox:
    """Return a warm worker with Triton's compiler loaded, which needs no GPU. A context manager.

    binary: whether it is warm for what a GPU runs too, which it can also compile without, half a second slower each time; None:
    where this machine has one.
    """
    to_the_end = ("windtunnel.verify.kernel.child.warm_compile:to_the_end",)
    return Sandbox(preload=COMPILER_PRELOAD + (to_the_end if binary or (binary is None and has_gpu()) else ()))


def gpu_sandbox(index: int = 0) -> Sandbox:
    """Return a worker whose child carries plans out, one after the other in one CUDA context. A context manager.

    CUDA starts in the child, since it does not survive a fork.

    index: the GPU's number among those that this process may use, as CUDA counts them here.
    """
    modules = (*TORCH, "triton", "windtunnel.verify.kernel.child.full", "windtunnel.verify.kernel.child.warm_gpu:warm")
    return _on_gpu(index, modules, BINARIES_ONLY)


def reference_sandbox(index: int = 0) -> Sandbox:
    """Return a worker for the reference and the comparison, which no kernel of a candidate ever shares. A context manager.

    index: as of `gpu_sandbox`.
    """
    return _on_gpu(index, (*TORCH, "windtunnel.verify.kernel.child.judge:warm"), {})


def _on_gpu(index: int, preload: Sequence[str], environment: Mapping[str, str]) -> Sandbox:
    """Return a sandbox that reaches this GPU and no other. Without one it starts too, and finds none."""
    gpu = seen_gpu(index) or SeenGPU(index)
    return Sandbox(
        preload=preload, environment={**ONE_QUEUE, **environment, **gpu.environment}, devices=gpu.devices, lasting=True
    )
