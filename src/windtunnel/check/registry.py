"""Which rooms have checks, and in which modules; each has them in its constant CHECKS and is imported on use."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from .core import Check

ROOMS: dict[str, str] = {
    "rig": "checks checks_software checks_places",
    "run": "checks",
    "data": "checks checks_text checks_splits checks_conversations checks_tokenizer",
    "plan": "checks",
    "model": "checks checks_recursion",
    "train": "checks checks_hf",
    "rl": "checks",
    "verify": "checks",
    "launch": "checks",
    "rehearse": "checks",
}


def all_checks() -> list[Check]:
    """Return the checks of all rooms in the order of the report.

    Two checks may have one name, such as `model`, where each applies to another kind of recipe.
    """
    modules = [import_module(f"windtunnel.{room}.{name}") for room, names in ROOMS.items() for name in names.split()]
    return in_order([check for module in modules for check in module.CHECKS])


def in_order(checks: Sequence[Check]) -> list[Check]:
    """Return the checks as they are given, but for those that need a later one: they follow it."""
    waiting, ordered = list(checks), []
    while waiting:
        ready = next((c for c in waiting if not any(other.name in c.needs for other in waiting)), None)
        assert ready is not None, f"checks that need one another: {', '.join(c.name for c in waiting)}"
        waiting.remove(ready)
        ordered.append(ready)
    return ordered
