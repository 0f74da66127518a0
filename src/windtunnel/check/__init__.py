"""Checks: what a room can prove before GPUs are rented, and the registry of the rooms that do. Importable without torch."""

from .context import Context
from .core import (
    RUNGS,
    Check,
    CheckFailed,
    CheckView,
    Evidence,
    Findings,
    Outcome,
    Rung,
    Say,
    Shows,
    Status,
    always,
    attempt,
    failed,
    not_run,
    trains_elsewhere,
)
from .first_steps import judge_first_steps, one_thread, reached
from .registry import all_checks, in_order

__all__ = [
    "RUNGS",
    "Check",
    "CheckFailed",
    "CheckView",
    "Context",
    "Evidence",
    "Findings",
    "Outcome",
    "Rung",
    "Say",
    "Shows",
    "Status",
    "all_checks",
    "always",
    "attempt",
    "failed",
    "in_order",
    "judge_first_steps",
    "not_run",
    "one_thread",
    "reached",
    "trains_elsewhere",
]
