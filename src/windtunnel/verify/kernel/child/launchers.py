"""Launchers of kernels, which Triton up to 3.6 has a C compiler make: one for nearly all signatures, made before any child.

Triton writes a C module for each signature, and the GPU's children would wait for the compiler most of their time. All that a
launcher gives to the driver are addresses: of these it reads as many as the kernel has arguments, at each as many bytes as the
argument has. So Triton's own module for a kernel of many pointers, which may be whole numbers as well, launches any kernel, if
each argument comes as the 8 bytes that begin with its own.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

FORMAT = "iiiKKppOOOOOO"
"""What Triton 3.6 has before a kernel's arguments; no other order is known here."""
SCRATCH = slice(7, 9)
"""Which of these every kernel has as its last two arguments."""
OWN = 62
"""Arguments of a kernel beside those, at most."""


def one_for_all(driver: Any) -> None:
    """Make the common launcher, and have Triton take it where it fits; what others are needed are made once in a process.

    Args:
        driver: `triton.backends.nvidia.driver`.
    """
    make = getattr(driver, "compile_module_from_src", None)  # from 3.8 on a file that Triton ships is compiled, and only that
    if make is None:
        return
    driver.compile_module_from_src = MadeOnce(make)
    if getattr(driver, "_BASE_ARGS_FORMAT", None) != FORMAT:
        return
    write, wrap = driver.make_launcher, driver.wrap_handle_tensordesc
    common = write({}, dict.fromkeys(range(OWN + 2), "*i8"), None)
    where = {"library_dirs": driver.library_dirs(), "include_dirs": driver.include_dirs, "libraries": driver.libraries}
    driver.compile_module_from_src(src=common, name="__triton_launcher", **where)

    def written(constants: Any, signature: Mapping[Any, Any], descriptors: Any) -> Any:
        return common if _fits(signature) else write(constants, signature, descriptors)

    def wrapped(launch: Callable[..., None], signature: Mapping[Any, Any], descriptors: Any) -> Callable[..., None]:
        return _in_words(launch, signature) if _fits(signature) else wrap(launch, signature, descriptors)

    driver.make_launcher, driver.wrap_handle_tensordesc = written, wrapped


class MadeOnce:
    """A function that makes modules of texts, each once in a process: nobody may unload one, and files go after each plan."""

    def __init__(self, make: Callable[..., ModuleType]) -> None:
        self.make = make
        self.made: dict[tuple[str, str], ModuleType] = {}

    def __call__(self, src: str, name: str, **how: Any) -> ModuleType:
        """Return the module of a text, made when it comes for the first time."""
        if (name, src) not in self.made:
            # It runs for microseconds: making it fast takes twice as long. The last flag of this kind counts.
            self.made[name, src] = self.make(src=src, name=name, ccflags=["-O0"], **how)
        return self.made[name, src]


def launchers_made() -> int:
    """Return how many launchers this process, or the one that it was forked from, has had a C compiler make."""
    from triton.backends.nvidia import driver

    return len(getattr(getattr(driver, "compile_module_from_src", None), "made", ()))


def _fits(signature: Mapping[Any, Any]) -> bool:
    """Return whether the arguments are few enough and no larger than 8 bytes, as only descriptors are."""
    kinds = [kind for _, kind in _arguments(signature.values())]
    return len(kinds) <= OWN and all(kind[0] == "*" or kind in WORDS for kind in kinds)


def _in_words(launch: Callable[..., None], signature: Mapping[Any, Any]) -> Callable[..., None]:
    """Return what launches a kernel of this signature by the common launcher."""
    first = len(FORMAT)
    places = [(first + at, inside, WORDS.get(kind)) for (at, *inside), kind in _arguments(signature.values())]
    rest = (None,) * (OWN - len(places))

    def launched(*given: Any) -> None:
        words = []
        for at, inside, word in places:
            value = given[at]
            for inner in inside:
                value = value[inner]
            words.append(value if word is None else word(value))
        launch(*given[:first], *words, *given[SCRATCH], *rest)

    return launched


def _arguments(kinds: Iterable[Any]) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield where each argument stands that is no constant, inside of tuples too, and Triton's name of its type."""
    for number, kind in enumerate(kinds):
        if isinstance(kind, tuple):
            yield from (((number, *place), inner) for place, inner in _arguments(kind))
        elif kind != "constexpr":
            yield (number,), kind


def _signed(bits: int) -> Callable[[int], int]:
    def word(value: int) -> int:
        if not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise OverflowError(f"{value} has more than {bits} bits")
        return _whole(value)

    return word


def _whole(value: int) -> int:
    return value & ((1 << 64) - 1)


def _single(value: float) -> int:
    return ctypes.c_uint32.from_buffer(ctypes.c_float(value)).value  # what is too large becomes infinite, as in C


WORDS: Mapping[str, Callable[[Any], int]] = {
    **{f"i{bits}": _signed(bits) for bits in (8, 16, 32, 64)},
    **dict.fromkeys(("i1", "u1", "u8", "u16", "u32", "u64"), _whole),
    "fp16": lambda value: int.from_bytes(struct.pack("<e", value), "little"),
    "bf16": lambda value: _single(value) >> 16,
    "fp32": _single,
    "fp64": lambda value: int.from_bytes(struct.pack("<d", value), "little"),
}
"""How numbers become 8 bytes, by Triton's names of types. Pointers do in the launcher."""
