"""What every section of a recipe is made of: the base class, and quantities as people write them."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

# As people write them: 350_000, 350,000 and 3.5e5. No sign: nothing here may be negative.
_NUMBER = r"\s*([0-9][0-9_,]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?)\s*"
_SECONDS = {
    "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0,
    "min": 60.0, "mins": 60.0, "minute": 60.0, "minutes": 60.0,
    "h": 3600.0, "hour": 3600.0, "hours": 3600.0,
    "d": 86400.0, "day": 86400.0, "days": 86400.0,
}  # fmt: skip
# Decimal, also of 'k' and 'M': 1M tokens are a million. That 4k of a sequence is 4,096 `synonyms` says in its refusal.
_SCALE = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


class Section(BaseModel):
    """Unknown keys refused, no silent type conversions, immutable."""

    # Strict, since a silent conversion hides mistakes: '8' for 8, 1.5 for a whole number. Frozen, so that one recipe can be
    # handed to every room.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, arbitrary_types_allowed=True)


def _number(text: str) -> float:
    number = float(text.replace(",", "").replace("_", ""))
    # 1e999 is infinity to Python.
    if not math.isfinite(number):
        raise ValueError("expected a finite number")
    return number


@dataclass(frozen=True)
class Every:
    """An interval of a run: a number of steps or of seconds, never both."""

    steps: int | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        if self.steps is not None:
            return f"{self.steps} steps"
        seconds = self.seconds or 0.0
        for unit, size in (("h", 3600.0), ("min", 60.0)):
            if seconds >= size and seconds % size == 0:
                return f"{int(seconds / size)} {unit}"
        return f"{seconds!r} s"


def parse_every(value: Any) -> Every:
    """'250 steps', '10 min', '1 h' -> Every. Raises ValueError on anything else."""
    if isinstance(value, Every):
        return value
    match = re.fullmatch(_NUMBER + r"([a-zA-Z]+)\s*", value) if isinstance(value, str) else None
    if match:
        number, unit = _number(match[1]), match[2].lower()
        if unit in ("step", "steps") and number >= 1 and number == int(number):
            return Every(steps=int(number))
        if unit in _SECONDS and number > 0:
            return Every(seconds=number * _SECONDS[unit])
    raise ValueError("expected an interval with its unit, such as '250 steps', '10 min' or '1 h'")


def parse_hours(value: Any) -> float:
    """Return hours: a number is hours already, text carries its unit ('90 min'). Raises ValueError otherwise."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    match = re.fullmatch(_NUMBER + r"([a-zA-Z]+)\s*", value) if isinstance(value, str) else None
    if match and match[2].lower() in _SECONDS:
        return _number(match[1]) * _SECONDS[match[2].lower()] / 3600.0
    raise ValueError("expected hours as a number, or a time with its unit such as '90 min' or '2 h'")


def parse_dollars(value: Any) -> float:
    """25, '$25' or '25 USD' -> 25.0. Raises ValueError otherwise."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    match = re.fullmatch(r"\s*\$?" + _NUMBER + r"(?:usd|dollars)?\s*", value, re.I) if isinstance(value, str) else None
    if match:
        return _number(match[1])
    raise ValueError("expected US dollars, such as 25 or '$25'")


def parse_count(value: Any) -> int:
    """524288, '350M', '1.5B tokens' -> int. Raises ValueError otherwise."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    match = re.fullmatch(_NUMBER + r"([kKmMbBtT]?)\s*(?:tokens?)?\s*", value) if isinstance(value, str) else None
    if match:
        return round(_number(match[1]) * _SCALE[match[2].lower()])
    raise ValueError("expected a whole number, such as 524288, '350M' or '1.5B'")


def parse_date(value: Any) -> datetime.date:
    """2024-03-15, as a date or as text -> date. Raises ValueError on anything else, such as 15.3.2024 or a time of day."""
    # YAML makes a date of 2024-03-15 by itself; a datetime is a date to Python too, and has an hour that would be dropped.
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value
    if isinstance(value, str) and re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
        try:
            return datetime.date.fromisoformat(value)
        except ValueError as error:
            raise ValueError(f"expected a date that is in the calendar: {error}") from None
    raise ValueError("expected a date as year-month-day, such as 2024-03-15")


def as_tuple(value: object) -> object:
    """Turn YAML's list into a tuple."""
    return tuple(value) if isinstance(value, list) else value


def either(names: Iterable[str]) -> str:
    """Return 'a, b or c'."""
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


Date = Annotated[datetime.date, BeforeValidator(parse_date)]
# Written back as text with its unit: a recipe that is dumped must load as the same one.
Interval = Annotated[Every, BeforeValidator(parse_every), PlainSerializer(str, return_type=str)]
Hours = Annotated[float, BeforeValidator(parse_hours)]
Dollars = Annotated[float, BeforeValidator(parse_dollars)]
Count = Annotated[int, BeforeValidator(parse_count)]
# Strict sections take no list for a tuple, and YAML has only lists.
Pair = Annotated[tuple[float, float], BeforeValidator(as_tuple)]
