"""The order of a rehearsal: every check that no stage proves better, then the stages, from the CPU upwards."""

from __future__ import annotations

from windtunnel.check import Check, all_checks

from . import after, climbing, comparing, learning, serving, staged, training


def stages() -> list[Check]:
    """The stages of a rehearsal; they share what they find through it."""
    modules = (training, learning, comparing, staged, after, serving, climbing)
    return [stage for module in modules for stage in module.CHECKS]


def rehearsal_checks() -> list[Check]:
    """Checks and stages. A check whose proof a stage repeats at a larger scale is left out."""
    later = stages()
    proven = {stage.name for stage in later}
    return [check for check in all_checks() if check.stage not in proven] + later
