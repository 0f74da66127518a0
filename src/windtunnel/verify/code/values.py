"""Plain Python values as JSON and back: no class of the candidate's ever reaches a comparison.

What derives from a plain class (Counter, a named tuple, an IntEnum) is the plain value that it holds, whatever its own methods
say, and one of numpy's numbers is Python's of the same value.

bool, None, str, int, float, list as themselves; large ints, NaN and infinities, tuple, set, frozenset, dict, bytes and complex
as an object with one tag.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

# A candidate chooses what it returns: neither walk may recurse as deep as it likes, nor be as long.
MOST_DEPTH = 60
MOST_VALUES = 1_000_000
MOST_NAME = 100
# Larger ones travel as text: other readers of JSON make floats of them, and Python limits the digits that it reads.
EXACT_IN_JSON = 1 << 62
# Plain class → the same of an instance of a class derived from it.
HELD: dict[type, Callable[[Any], Any]] = {
    int: int.__index__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    bytearray: lambda value: bytearray.__getitem__(value, slice(None)),
    list: lambda value: [*list.__iter__(value)],
    tuple: lambda value: (*tuple.__iter__(value),),
    set: lambda value: {*set.__iter__(value)},
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
    dict: lambda value: dict(dict.items(value)),
}


class NotPlain(Exception):
    """A value that has no plain form; its text says which."""


def encode(value: Any) -> Any:
    """Return a JSON value for a plain Python value.

    Raises:
        NotPlain: an instance of another class, nested too deeply, or too much.
    """
    return _encode(value, 0, [MOST_VALUES])


def decode(value: Any) -> Any:
    """Return the Python value of what encode made, checked as untrusted input.

    Raises:
        NotPlain: encode never makes this.
    """
    return _decode(value, 0)


def _encode(value: Any, depth: int, left: list[int]) -> Any:
    left[0] -= 1
    if depth > MOST_DEPTH:
        raise NotPlain(f"nested more than {MOST_DEPTH} deep")
    if left[0] < 0:
        raise NotPlain(f"more than {MOST_VALUES:,} values")
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    # By the very class first: most values are plain, and every one of them is asked.
    if kind not in HELD:
        value = _held(value)
        kind = type(value)
        if kind is bool or kind is str:
            return value
    if kind is int:
        return value if abs(value) < EXACT_IN_JSON else {"int": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if kind is list:
        return [_encode(item, depth + 1, left) for item in value]
    if kind in (tuple, set, frozenset):
        return {kind.__name__: [_encode(item, depth + 1, left) for item in value]}
    if kind is dict:
        return {"dict": [[_encode(k, depth + 1, left), _encode(v, depth + 1, left)] for k, v in value.items()]}
    if kind in (bytes, bytearray):
        return {kind.__name__: value.hex()}
    if kind is complex:
        return {"complex": [repr(value.real), repr(value.imag)]}
    name = f"{'' if kind.__module__ == 'builtins' else f'{kind.__module__}.'}{kind.__name__}"[:MOST_NAME]
    raise NotPlain(f"a value of class {name}; tests compare plain values: numbers, text, lists, tuples, sets, dicts, bytes")


def _held(value: Any) -> Any:
    """Return what an instance of a derived class holds, by its plain class's own methods."""
    # An answer that uses no numpy need not pay for importing it.
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        value = value.item()
    for plain, held in HELD.items():
        if issubclass(type(value), plain):
            return held(value)
    return value


def tag_of(value: Any) -> tuple[str, Any]:
    """Return the kind of a value in plain form and its content: members for containers (pairs for a dict), else the value.

    Raises:
        NotPlain: encode never makes this.
    """
    if isinstance(value, list):
        return "list", value
    if not isinstance(value, dict):
        return "value", value
    if len(value) != 1:
        raise NotPlain("not a tagged value")
    ((tag, body),) = value.items()
    if tag in ("dict", "set", "frozenset", "tuple") and not isinstance(body, list):
        raise NotPlain(f"a malformed {tag}")
    if tag == "dict" and not all(isinstance(pair, list) and len(pair) == 2 for pair in body):
        raise NotPlain("a malformed dict")
    return tag, body


def _decode(value: Any, depth: int) -> Any:
    if depth > MOST_DEPTH + 2:
        raise NotPlain("nested too deeply")
    tag, body = tag_of(value)
    if tag == "value":
        return body
    if tag == "list":
        return [_decode(item, depth + 1) for item in body]
    try:
        return _tagged(tag, body, depth)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        raise NotPlain(f"a malformed {tag[:40]}: {error}") from None


def _tagged(tag: str, body: Any, depth: int) -> Any:
    if tag == "int":
        # In base 16 Python reads any number of digits, in time that grows as they do.
        return int(body, 16)
    if tag == "float":
        return float(body)
    if tag == "dict":
        return {_decode(k, depth + 1): _decode(v, depth + 1) for k, v in body}
    if tag in ("tuple", "set", "frozenset"):
        return {"tuple": tuple, "set": set, "frozenset": frozenset}[tag](_decode(item, depth + 1) for item in body)
    if tag == "bytes":
        return bytes.fromhex(body)
    if tag == "bytearray":
        return bytearray.fromhex(body)
    if tag == "complex":
        return complex(float(body[0]), float(body[1]))
    raise NotPlain(f"unknown tag {tag[:40]}")
