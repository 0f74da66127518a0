"""Rehearsals: a recipe's scale model run end to end on this machine, and the report that says whether it is ready."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checks import Check, CheckFailed, Evidence, Outcome, run_checks
    from .conduct import Options, rehearse
    from .readiness import Readiness
    from .screen import Progress, show

__all__ = ["Check", "CheckFailed", "Evidence", "Options", "Outcome", "Progress", "Readiness", "rehearse", "run_checks", "show"]

_LAZY = {
    **dict.fromkeys(("Check", "CheckFailed", "Evidence", "Outcome", "run_checks"), "checks"),
    "Readiness": "readiness",
    **dict.fromkeys(("Options", "rehearse"), "conduct"),
    **dict.fromkeys(("Progress", "show"), "screen"),
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(name)
