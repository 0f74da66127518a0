"""Loaded into the GPU's warm worker before any candidate: what Triton sets up on first use, as far as that needs no CUDA context.

A child would pay for each of these again: LLVM's start, the C module through which Triton speaks to the driver, which a C
compiler makes, and asking ptxas for its version. Imports torch and triton.
"""

from __future__ import annotations

import sys

import torch

from windtunnel.verify.kernel.child.launchers import one_for_all
from windtunnel.verify.kernel.child.warm_kernel import compile_to_the_end, own_cache

# Those that Triton 3 compiles for, from Ampere on.
CAPABILITIES = (80, 86, 89, 90, 100, 120)


def warm() -> None:
    """Load all of it. What fails is left to the children, who then say what is wrong; here it is noted."""
    with own_cache():
        for step in (compile_to_the_end, _arguments, _versions, _driver, _launchers, _count):
            try:
                step()
            except Exception as error:
                print(f"{step.__name__}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


def _arguments() -> None:
    """Look once: Triton imports some modules when it first looks at what a kernel is given."""
    from triton.runtime.jit import mangle_type

    mangle_type(torch.empty(1))


def _versions() -> None:
    from triton.backends.nvidia.compiler import get_ptxas_version

    for capability in CAPABILITIES:
        get_ptxas_version(capability)


def _driver() -> None:
    """Load the module of the driver's functions; none is called, so that no context begins, which a fork would break.

    There is one object of them, but each driver that Triton makes, as it does in each child, sets it up anew (up to 3.7): without
    its folder of compiled modules a child would have the C compiler make the same one again.
    """
    from triton.backends.nvidia.driver import CudaUtils

    utils = CudaUtils()
    # Where each call makes another object, each has to be set up.
    if CudaUtils.__new__(CudaUtils) is utils:
        CudaUtils.__init__ = _is_set_up


def _launchers() -> None:
    from triton.backends.nvidia import driver

    one_for_all(driver)


def _count() -> None:
    """Tell PyTorch that there is one GPU, as a child sees it: it asks NVIDIA's management library several times at its start."""
    if hasattr(torch.cuda, "_cached_device_count"):
        torch.cuda._cached_device_count = 1


def _is_set_up(_: object) -> None:
    """Stand in for what sets it up."""
