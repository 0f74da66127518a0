"""What is wrong with a request, in OpenAI's words and with its codes, so that clients that look at either understand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_LIMITS = {
    "greater_than_equal": ("ge", "below_min_value", "below minimum value", ">="),
    "greater_than": ("gt", "below_min_value", "below minimum value", ">"),
    "less_than_equal": ("le", "above_max_value", "above maximum value", "<="),
    "less_than": ("lt", "above_max_value", "above maximum value", "<"),
}
_TYPES = {
    "int_type": "an integer", "int_from_float": "an integer", "float_type": "a decimal", "bool_type": "a boolean",
    "string_type": "a string", "list_type": "an array", "dict_type": "an object", "model_type": "an object",
}  # fmt: skip
_GIVEN = (
    (bool, "a boolean"),
    (int, "an integer"),
    (float, "a decimal"),
    (str, "a string"),
    (list, "an array"),
    (dict, "an object"),
)


def in_words(name: str, problems: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return (message, code) for what pydantic found wrong with one parameter; of several forms the one that was nearest."""
    # Of a union pydantic tells what is wrong with each form; the one whose type fits is meant.
    of_type = [p for p in problems if p["type"] in _TYPES]
    problem = next((p for p in problems if p["type"] not in _TYPES), problems[0])
    kind, given, limits, path = problem["type"], problem["input"], problem.get("ctx", {}), _path(problem["loc"])
    if kind in _LIMITS:
        key, code, words, sign = _LIMITS[kind]
        number = "decimal" if isinstance(limits[key], float) else "integer"
        wanted = f"Expected a value {sign} {limits[key]}, but got {given} instead."
        return f"Invalid {path!r}: {number} {words}. {wanted}", f"{number}_{code}"
    if kind == "missing":
        return f"Missing required parameter: {path!r}.", "missing_required_parameter"
    if kind == "too_short" and not given:
        return f"Invalid {path!r}: empty array. Expected an array with minimum length {limits['min_length']}.", "empty_array"
    if kind in ("too_long", "string_too_long", "string_too_short"):
        return _of_length(path, kind, limits, given)
    if kind in _TYPES:
        wanted = " or ".join(dict.fromkeys(_TYPES[p["type"]] for p in of_type))
        told = next((words for of, words in _GIVEN if isinstance(given, of)), "null")
        return f"Invalid type for {path!r}: expected {wanted}, but got {told} instead.", "invalid_type"
    # Each form of a union says its own; more than a few help nobody.
    own = dict.fromkeys(p["msg"].removeprefix("Value error, ") for p in problems)
    return f"{name}: {' or: '.join(list(own)[:4])}", "invalid_value"


def _of_length(path: str, kind: str, limits: Mapping[str, Any], given: Any) -> tuple[str, str]:
    what, form = ("array", "an array") if kind == "too_long" else ("string", "a string")
    side, word, length = ("below_min", "short", "minimum") if kind.endswith("short") else ("above_max", "long", "maximum")
    limit = limits["min_length" if kind.endswith("short") else "max_length"]
    words = f"{what} too {word}. Expected {form} with {length} length {limit}, but got {form} with length {len(given)} instead."
    return f"Invalid {path!r}: {words}", f"{what}_{side}_length"


def _path(place: Sequence[Any]) -> str:
    """Return a parameter's path as OpenAI writes it: messages[0].role; what pydantic calls the forms of a union is left out."""
    name = str(place[0])
    if len(place) > 1 and isinstance(place[1], int):
        name += f"[{place[1]}]" + (f".{place[2]}" if len(place) > 2 else "")
    return name
