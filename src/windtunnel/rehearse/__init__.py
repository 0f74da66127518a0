"""Checks of a recipe and a rig, and rehearsals: its scale model run end to end here; a report says whether it is ready."""

from typing import TYPE_CHECKING

from windtunnel import lazy

if TYPE_CHECKING:
    from .conduct import CheckOptions, Options, check_recipe, rehearse
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

__getattr__ = lazy(__name__)
