"""Pages from templates, written in one go."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from windtunnel.recipe import UserError

from .text import duration

SIGNS = {"ok": "✓", "fail": "✗", "warn": "!", "skip": "–"}
WORDS = {"ok": "ok", "fail": "failed", "warn": "ok, but", "skip": "not here"}


def template(name: str) -> Any:
    """Return a template of this room; everything that came from outside is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("windtunnel.watch", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["seconds"] = lambda s: f"{s:.1f} s" if s < 60 else duration(s)
    environment.filters["picture"] = Markup
    environment.globals |= {"signs": SIGNS, "words": WORDS}
    return environment.get_template(name)


def save(path: Path, page: str) -> Path:
    """Write a page in one go: a reader never sees half of it. Returns its path.

    Raises:
        UserError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(page, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # on a read-only disk not even what is not there can be removed
            temporary.unlink()
        raise UserError(f"report {path} cannot be written: {error.strerror or error}") from None
    return path
