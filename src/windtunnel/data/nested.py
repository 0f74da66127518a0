"""Values inside the values of a record: found by dotted names, read where they are JSON in a text, and made plain JSON."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

from windtunnel.recipe import UserError, parse_json

_MOST_SHOWN = 12


def look_up(record: Any, name: str) -> Any:
    """Return what stands under a name, or under 'outer.inner' in what stands under the outer one; None where nothing does.

    An object on the way may be JSON in a text, as columns of Parquet often are.
    """
    if isinstance(record, str):
        record = json_in(record)
    if not isinstance(record, dict):
        return None
    if name in record or "." not in name:
        return record.get(name)
    outer, _, inner = name.partition(".")
    return look_up(record.get(outer), inner)


def json_in(text: str) -> Any:
    """Return the object or list that a text holds as JSON; None where it holds none."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return parse_json(text)
    except ValueError:
        return None


def shown_names(record: dict[str, Any]) -> str:
    """Return the names by which a record's values can be found, for messages."""
    names = []
    for key in sorted(record):
        inner = json_in(record[key]) if isinstance(record[key], str) else record[key]
        names += [f"{key}.{name}" for name in inner] if isinstance(inner, dict) and inner else [key]
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return (", ".join(names[:_MOST_SHOWN]) or "none") + more


def as_json(where: str, value: Any) -> Any:
    """Return a value as JSON can hold it: tables have dates too.

    Raises:
        UserError: it holds bytes, as columns of images do.
    """
    if isinstance(value, dict):
        return {str(key): as_json(f"{where}.{key}", one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(where, one) for one in value]
    if isinstance(value, bytes):
        fix = "leave that column out; where prompts ask about images, a model of text cannot answer them"
        raise UserError(f"{where} holds {len(value):,} bytes, such as an image, expected text and numbers", fix)
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta | decimal.Decimal):
        return str(value)
    return value
