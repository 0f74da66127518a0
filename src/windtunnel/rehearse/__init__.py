"""Checks of a recipe and a rig, and rehearsals: its scale model run end to end here; a report says whether it is ready."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .check import CheckOptions, check_recipe
    from .checking import Check, CheckFailed, Context, Evidence, Outcome, all_checks, run_checks
    from .conduct import Options, rehearse
    from .page import write_page
    from .readiness import Readiness
    from .screen import Progress, show

__all__ = [
    "Check",
    "CheckFailed",
    "CheckOptions",
    "Context",
    "Evidence",
    "Options",
    "Outcome",
    "Progress",
    "Readiness",
    "all_checks",
    "check_recipe",
    "rehearse",
    "run_checks",
    "show",
    "write_page",
]

_LAZY = {
    **dict.fromkeys(("CheckOptions", "check_recipe"), "check"),
    **dict.fromkeys(("Check", "CheckFailed", "Context", "Evidence", "Outcome", "all_checks", "run_checks"), "checking"),
    "Readiness": "readiness",
    "write_page": "page",
    **dict.fromkeys(("Options", "rehearse"), "conduct"),
    **dict.fromkeys(("Progress", "show"), "screen"),
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(name)
