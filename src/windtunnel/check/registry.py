"""Which modules have checks: of the rooms, each in its constant CHECKS, and of other packages, by entry points."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from windtunnel.recipe import Plugin, UserError, plugins

from .core import Check

# Named, since checks are imported only when they are asked for; in the order of the report.
ROOMS: dict[str, str] = {
    "rig": "checks checks_software checks_places checks_processor",
    "run": "checks checks_records",
    "checkpoint": "checks",
    "mirror": "checks",
    "data": "checks checks_text checks_splits checks_conversations checks_theses checks_tokenizer checks_added checks_kernels",
    "plan": "checks",
    "model": "checks checks_files checks_recursion",
    "train": "checks checks_hf",
    "rl": "checks",
    "verify": "checks",
    "launch": "checks",
    "rehearse": "checks",
}


def all_checks() -> list[Check]:
    """Return the checks of all rooms and of installed packages, in the order of the report.

    Two checks of rooms may have one name, such as `model`, where each applies to another kind of recipe.

    Raises:
        UserError: a package's entry point in `windtunnel.checks` is broken.
    """
    modules = [import_module(f"windtunnel.{room}.{name}") for room, names in ROOMS.items() for name in names.split()]
    checks = [check for module in modules for check in module.CHECKS]
    for plugin in plugins("checks"):
        checks += _checks_of(plugin, {check.name for check in checks})
    return in_order(checks)


def in_order(checks: Sequence[Check]) -> list[Check]:
    """Return the checks as they are given, but for those that need a later one: they follow it.

    Raises:
        UserError: checks need one another.
    """
    waiting, ordered = list(checks), []
    while waiting:
        # Quadratic, of a few dozen checks.
        ready = next((c for c in waiting if not any(other.name in c.needs for other in waiting)), None)
        if ready is None:
            raise UserError(f"checks that need one another: {', '.join(c.name for c in waiting)}", "correct their `needs`")
        waiting.remove(ready)
        ordered.append(ready)
    return ordered


def _checks_of(plugin: Plugin, taken: set[str]) -> list[Check]:
    """Return what a package offers: a Check, or a sequence of them. Raises UserError."""
    found = plugin.load()
    # One check or several, whichever a package finds easier to export.
    checks = [found] if isinstance(found, Check) else list(found) if isinstance(found, Sequence) else []
    if not checks or not all(isinstance(check, Check) for check in checks):
        raise plugin.broken("is neither a windtunnel.check.Check nor a sequence of them")
    for check in checks:
        if check.name in taken:
            raise plugin.broken(f"has the name of another check: {check.name}")
    return checks
