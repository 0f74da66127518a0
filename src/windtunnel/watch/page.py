"""Pages from templates, written in one go."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from windtunnel.files import write_atomic
from windtunnel.recipe import UserError

from .live import finite
from .text import duration

STATIC = Path(__file__).parent / "static"
SCRIPTS = ("charts.js", "curves.js", "report.js")

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
    environment.globals |= {"signs": SIGNS, "words": WORDS, "drawing": _drawing, "charts_style": _charts_style}
    return environment.get_template(name)


def script_source() -> str:
    """Return what a Content-Security-Policy calls the script of a page, so that no other runs in it."""
    # By its hash, so that no other script runs, whatever text a run's recipe or samples hold.
    return f"'sha256-{base64.b64encode(hashlib.sha256(_script().encode()).digest()).decode()}'"


def _drawing(curves: dict[str, Any]) -> Any:
    """Return the elements that hold a page's curves and draw them. Text of a run can end neither of them."""
    from markupsafe import Markup

    # A '<' could begin </script> or <!--, which end or change the element whatever JSON says.
    data = json.dumps(finite(_short(curves)), allow_nan=False, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return Markup(f'<script type="application/json" id="curves">{data}</script>\n<script type="module">{_script()}</script>')


def _charts_style() -> Any:
    from markupsafe import Markup

    return Markup((STATIC / "charts.css").read_text(encoding="utf-8"))


@cache
def _script() -> str:
    """Return the modules of the live pages that draw, and what draws a report's curves, as one module."""
    return "\n" + "\n".join((STATIC / name).read_text(encoding="utf-8") for name in SCRIPTS)


def _short(value: Any) -> Any:
    """Return numbers with six digits: no reader sees more, and a page has thousands."""
    if isinstance(value, float):
        # As shortest text: the digits behind are most of a page's bytes.
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_short(item) for item in value]
    return value


def save(path: Path, page: str) -> Path:
    """Write a page in one go: a reader never sees half of it. Returns its path.

    Raises:
        UserError: the file cannot be written.
    """
    try:
        write_atomic(path, page, durable=False)
    except OSError as error:
        raise UserError(
            f"report {path} cannot be written: {error.strerror or error}", "name a file in a folder that is there and yours"
        ) from None
    return path
