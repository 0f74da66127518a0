"""Checks of a recipe and a rig, and rehearsals: its scale model run end to end here; a report says whether it is ready."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .check import CheckOptions, check_recipe
    from .conduct import Options, rehearse
    from .context import Context
    from .page import write_page
    from .readiness import Readiness
    from .runner import run_checks, select
    from .screen import Progress, show

__all__ = [
    "CheckOptions",
    "Context",
    "Options",
    "Progress",
    "Readiness",
    "check_recipe",
    "rehearse",
    "run_checks",
    "select",
    "show",
    "write_page",
]

_LAZY = {
    **dict.fromkeys(("CheckOptions", "check_recipe"), "check"),
    "Context": "context",
    "Readiness": "readiness",
    "write_page": "page",
    **dict.fromkeys(("Options", "rehearse"), "conduct"),
    **dict.fromkeys(("run_checks", "select"), "runner"),
    **dict.fromkeys(("Progress", "show"), "screen"),
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(name)
