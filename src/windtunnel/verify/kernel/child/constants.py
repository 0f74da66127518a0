"""What kernels are given as constants. Imports torch and triton.

The interpreter and the compiler run what a kernel does with a constant as Python, out of the watch's sight: a tensor's methods
and the candidate's own functions would compute there on the host.
"""

from __future__ import annotations

import enum
import inspect
from typing import Any

import torch
import triton.language as tl
from triton.runtime import jit

from windtunnel.verify.kernel.child.watch import Launches

PLAIN = (bool, int, float, str, type(None), tl.dtype, torch.dtype, jit.KernelInterface)


def look_at_constants(launches: Launches, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Notes the first odd one of a kernel's launch."""
    odd = _odd_one(function, args, kwargs)
    if odd:
        launches.handed.setdefault(function.__name__, odd)


def _odd_one(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """What of a launch is no number, text, dtype or kernel, nor a tensor that comes as a pointer, in words; '' for nothing."""
    given = {**dict(zip(function.arg_names, args, strict=False)), **kwargs}
    for name, argument in inspect.signature(function.fn).parameters.items():
        value = given.get(name, argument.default)
        allowed = PLAIN if "constexpr" in str(argument.annotation) else (*PLAIN, torch.Tensor)
        if value is not inspect.Parameter.empty and not _all(value, allowed):
            return f"a {type(value).__name__} as {name}"
    return ""


def _all(value: Any, allowed: tuple[Any, ...]) -> bool:
    if isinstance(value, tl.constexpr | enum.Enum):  # a kernel may ask for what stands behind a name
        return _all(value.value, PLAIN)  # whatever the argument is, a tensor in there comes as no pointer
    if isinstance(value, tuple | list):
        return all(_all(part, allowed) for part in value)
    return isinstance(value, allowed)
