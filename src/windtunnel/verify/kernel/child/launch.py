"""Launches kernels without a C compiler, where Triton (up to 3.6) has one make a launcher for each signature.

That takes longer than most kernels take to compile, and each child would pay for it. The launch itself is some microseconds
slower, so nothing is timed this way. Imports nothing of torch or triton.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

Maker = Callable[[Any], Any]
WARP = 32


def install_quick_launcher(driver: ModuleType) -> None:
    """Kernels whose arguments are plain get our launcher, all others Triton's. driver: Triton's module for NVIDIA."""
    if not hasattr(driver, "make_launcher"):
        return  # it has one for all signatures
    theirs = driver.CudaLauncher

    def launcher(source: Any, metadata: Any) -> Any:
        makers = makers_of(source.signature.values()) if _plain(metadata) else None
        return theirs(source, metadata) if makers is None else QuickLauncher(makers, ctypes.CDLL("libcuda.so.1"))

    driver.CudaLauncher = launcher  # type: ignore[attr-defined]


class QuickLauncher:
    """Calls the driver's cuLaunchKernel. makers: for each argument what turns it into a C value, None for what the kernel has
    built in. Called as Triton calls its own."""

    def __init__(self, makers: list[Maker | None], library: ctypes.CDLL) -> None:
        self.makers = makers
        self.launch = library.cuLaunchKernel
        number = ctypes.c_uint
        self.launch.argtypes = [ctypes.c_void_p, *[number] * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        self.launch.restype = ctypes.c_int

    def __call__(self, x: int, y: int, z: int, stream: int, function: int, packed: Any, *rest: Any) -> None:
        """x, y, z: programs. packed: warps, blocks of a cluster, bytes of shared memory. rest: three of no use, arguments."""
        if x * y * z <= 0:
            return
        warps, _, shared = packed[:3]
        arguments = rest[3:]
        values = [make(value) for make, value in zip(self.makers, arguments, strict=True) if make is not None]
        values += [ctypes.c_uint64(0), ctypes.c_uint64(0)]  # scratch memory for all programs, and for a profiler: none
        places = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
        code = self.launch(function, x, y, z, WARP * warps, 1, 1, shared, stream, places, None)
        if code:
            raise RuntimeError(f"Triton Error [CUDA]: cuLaunchKernel gives {code}")


def makers_of(kinds: Iterable[object]) -> list[Maker | None] | None:
    """For each argument's type what turns it into a C value; None where one of them is not plain."""
    makers: list[Maker | None] = []
    for kind in kinds:
        if not isinstance(kind, str):
            return None
        if kind == "constexpr":
            makers.append(None)
        elif kind.startswith("*"):
            makers.append(_pointer)
        elif kind in PLAIN:
            makers.append(PLAIN[kind])
        else:
            return None
    return makers


def _plain(metadata: Any) -> bool:
    unusual = ("launch_cooperative_grid", "launch_pdl", "global_scratch_size", "profile_scratch_size", "tensordesc_meta")
    return metadata.num_ctas == 1 and not any(getattr(metadata, name, None) for name in unusual)


def _pointer(value: Any) -> Any:
    if value is None or isinstance(value, int):
        return ctypes.c_uint64(value or 0)
    if getattr(getattr(value, "device", None), "type", "cuda") != "cuda":
        raise ValueError("Pointer argument cannot be accessed from Triton (cpu tensor?)")
    return ctypes.c_uint64(value.data_ptr())


def _half(value: Any) -> Any:
    return ctypes.c_uint16(struct.unpack("<H", struct.pack("<e", value))[0])


PLAIN: dict[str, Maker] = {
    "i1": ctypes.c_int8, "i8": ctypes.c_int8, "i16": ctypes.c_int16, "i32": ctypes.c_int32, "i64": ctypes.c_int64,
    "u1": ctypes.c_uint8, "u8": ctypes.c_uint8, "u16": ctypes.c_uint16, "u32": ctypes.c_uint32, "u64": ctypes.c_uint64,
    "fp32": ctypes.c_float, "f32": ctypes.c_float, "fp64": ctypes.c_double, "fp16": _half,
}  # fmt: skip
