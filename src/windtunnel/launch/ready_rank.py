"""A rank that waits for its run: python -m windtunnel.launch.ready_rank NUMBER [MODULE ...]. Started by `ready`."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import threading
from importlib import import_module

from .forking import count_threads


def main() -> int:
    """Import, start CUDA, then be the program that standard input names, with its arguments and environment.

    Returns:
        its code; 0 where standard input ends first.
    """
    number, *modules = sys.argv[1:]
    # Both take seconds, CUDA in the driver and imports in Python: they go on side by side.
    starting = start_cuda(int(number))
    for module in ("windtunnel.launch.worker", "windtunnel.train.session", *modules):
        with contextlib.suppress(ImportError):  # whoever trains meets it again, and says so
            import_module(module)
    starting.join()
    _look_at_kernels(int(number))
    line = sys.stdin.buffer.readline()
    if not line:
        return 0
    # Nothing more comes by the pipe, and a run is to find no input, as one that was started by itself.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    work = json.loads(line)
    # All of it, also what is no longer set: the run is to find what it would have found as a process of its own.
    os.environ.clear()
    os.environ.update(work["environment"])
    count_threads()
    sys.argv = work["arguments"]
    code: int = import_module(sys.argv[0]).main()
    return code


def start_cuda(number: int) -> threading.Thread:
    """Start CUDA on a GPU, where there is one, in a thread beside the imports: the context is the one that PyTorch uses."""

    def start() -> None:
        with contextlib.suppress(OSError, AttributeError):
            cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
            if cuda.cuInit(0) == 0:
                cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), number)

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    return thread


def _look_at_kernels(number: int) -> None:
    """Import what the first step on a GPU would import, and let PyTorch start on it."""
    import torch

    if not torch.cuda.is_available():
        return
    from windtunnel.model import flash_kernels

    flash_kernels()
    with contextlib.suppress(ImportError, RuntimeError):
        import_module("windtunnel.train.triton_updates")
        torch.cuda.set_device(number)
        torch.zeros(1, device="cuda")


if __name__ == "__main__":
    sys.exit(main())
