"""Refinement that is bought: the first supervision step is made bad, so that the last looks good beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from windtunnel.recipe import PRESETS

LEAST_REFINEMENT = 10.0
"""Percent from which refinement is questioned where a preset promises none: what the guide holds for success."""
CLEAR = 0.01
"""What is less than this share of the loss of knowing nothing is no difference: memorised data have tiny losses."""


@dataclass(frozen=True)
class Spoilt:
    """Refinement that a spoilt first step accounts for.

    Attributes:
        where: on which data. refinement: percent, last supervision step against the first.
        earned: percent, last step against the plain model of the same parameters; negative where that is better.
        first, last, plain, uniform: losses in nats a token.
    """

    where: str
    refinement: float
    earned: float
    first: float
    last: float
    plain: float
    uniform: float

    @property
    def words(self) -> str:
        """The finding as sentences."""
        worse = "the plain model of the same parameters"
        nothing = f" and more than knowing nothing does ({self.uniform:.2f})" if self.first > self.uniform else ""
        earned = f"{self.earned:.1f} % better" if self.earned >= 0 else f"{-self.earned:.1f} % worse"
        return (
            f"The refinement of {self.refinement:.1f} % on {self.where} is bought by spoiling supervision step 0: it loses "
            f"{self.first:.2f} nats, more than {worse} ({self.plain:.2f}){nothing}. Against {worse} the last step, "
            f"{self.last:.2f}, is {earned}."
        )

    def to_json(self) -> dict[str, Any]:
        """All fields and the sentences."""
        return asdict(self) | {"words": self.words}


def spoilt(where: str, steps: Sequence[float], plain: float, uniform: float, preset: str) -> Spoilt | None:
    """Whether refinement is bought; None where it is not.

    It is where refinement reaches what the preset promises (LEAST_REFINEMENT where it promises nothing), the first step
    is worse than the plain model of the same parameters by CLEAR of what knowing nothing loses, and either the first step
    is worse than knowing nothing or less than half of the refinement is left against that plain model.

    Args:
        steps: losses after each supervision step, nats a token. plain: of the plain model of the same parameters.
        uniform: of a model that knows nothing.
    """
    if len(steps) < 2 or min(steps[0], plain) <= 0:
        return None
    first, last = steps[0], steps[-1]
    refinement, earned = 100 * (first - last) / first, 100 * (plain - last) / plain
    promised = PRESETS[preset].refinement
    if refinement < (promised[0] if promised else LEAST_REFINEMENT) or first <= plain + CLEAR * uniform:
        return None
    if first <= uniform and earned >= refinement / 2:
        return None
    return Spoilt(where, refinement, earned, first, last, plain, uniform)
