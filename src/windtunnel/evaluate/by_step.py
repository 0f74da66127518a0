"""Held-out loss of a recursive model after each supervision step, beyond those that it was trained with too."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .loss import StepLoss

STEP_COLUMNS = ("supervision steps", "loss", "bits per byte", "")
ALL_SHOWN = 16
"""Up to so many steps have a row each; of more, powers of two, the trained number with its neighbours and the last."""


@dataclass(frozen=True)
class LossByStep:
    """What each supervision step is worth.

    Attributes:
        trained: supervision steps in training. steps: after 1, 2, ... of those that were used.
    """

    trained: int
    steps: tuple[StepLoss, ...]

    def to_json(self) -> dict[str, Any]:
        """Stable keys; lists begin with the first step. null: no number."""
        return {
            "trained": self.trained,
            "loss": [_finite(step.loss) for step in self.steps],
            "bits_per_byte": [_finite(step.bits_per_byte) for step in self.steps],
        }

    def rows(self) -> list[tuple[str, str, str, str]]:
        """To be printed under STEP_COLUMNS: the trained number of steps and the lowest loss are marked."""
        lowest = min(range(len(self.steps)), key=lambda i: self.steps[i].loss) + 1
        rows = []
        for number in sorted(self._shown() | {lowest}):
            step = self.steps[number - 1]
            marks = [*["trained"] * (number == self.trained), *["lowest loss"] * (number == lowest)]
            rows.append((str(number), f"{step.loss:.4f}", f"{step.bits_per_byte:.4f}", ", ".join(marks)))
        return rows

    def _shown(self) -> set[int]:
        last = len(self.steps)
        if last <= ALL_SHOWN:
            return set(range(1, last + 1))
        near = (self.trained - 1, self.trained, self.trained + 1)
        powers = (1 << i for i in range(last.bit_length()))
        return {number for number in (*powers, *near, last) if 1 <= number <= last}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
