"""Checks: what can be proven about a recipe and a rig before GPUs are rented, each by itself and safely."""

from .catalog import all_checks
from .context import Context
from .runner import run_checks, select
from .types import RUNGS, Check, CheckFailed, Evidence, Findings, Outcome, Rung, Say, Shows, View

__all__ = [
    "RUNGS",
    "Check",
    "CheckFailed",
    "Context",
    "Evidence",
    "Findings",
    "Outcome",
    "Rung",
    "Say",
    "Shows",
    "View",
    "all_checks",
    "run_checks",
    "select",
]
