"""Refinement that is bought, by a first supervision step that was made bad, or that means nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from windtunnel.recipe import PRESETS
from windtunnel.run import apart

# Percent from which refinement is questioned: what the guide holds for success. A preset that promises less: from there on.
LEAST_REFINEMENT = 10.0
CLEAR = 0.01  # what is less than this share of the loss of knowing nothing is no difference: memorised data have tiny losses
NEARLY_NOTHING = 0.02  # below this share of it a first step loses so little that percentages of it mean nothing
KEPT = 0.5  # where less of what a run knows of its training batches holds on held-out data, it has memorised them

Reason = Literal["bought", "memorised", "unlearnt", "tiny"]
PLAIN, SAME_FLOPS = "the plain model of the same parameters", "the plain model of the same FLOPs"


@dataclass(frozen=True)
class Spoilt:
    """Refinement that is called out.

    Attributes:
        where: on which data. reasons: 'bought' by spoiling the first step; of data that are 'memorised'; 'unlearnt', as the
            last step loses more than knowing nothing does; 'tiny', a percentage of nearly nothing.
        refinement: percent, last supervision step against the first.
        earned: percent, last step against the plain model of the same parameters; negative where that is better.
        first, last, plain, uniform: losses in nats a token. held_out: the run's on held-out data; None: those are them.
        same_flops: of the plain model of the same FLOPs; None where it is not needed, or not known.
    """

    where: str
    reasons: tuple[Reason, ...]
    refinement: float
    earned: float
    first: float
    last: float
    plain: float
    uniform: float
    held_out: float | None = None
    same_flops: float | None = None

    @property
    def words(self) -> str:
        """The finding as sentences."""
        what = f"The refinement of {self.refinement:.1f} % on {self.where}"
        found = {"bought": self._bought, "memorised": self._memorised, "unlearnt": self._unlearnt, "tiny": self._tiny}
        first, *others = (found[reason]() for reason in self.reasons)
        return " ".join([f"{what} {first}", *(f"It {other}" for other in others), *self._beside()])

    def _bought(self) -> str:
        nothing = f" and more than knowing nothing does ({self.uniform:.2f})" if self.first > self.uniform else ""
        earned = f"{self.earned:.1f} % better" if self.earned >= 0 else f"{-self.earned:.1f} % worse"
        return (
            f"is bought by spoiling supervision step 0: it loses {self.first:.2f} nats, more than {PLAIN} "
            f"({self.plain:.2f}){nothing}. Against {PLAIN} the last step, {self.last:.2f}, is {earned}."
        )

    def _memorised(self) -> str:
        beyond = ", more than knowing nothing does" if self.held_out is not None and self.held_out >= self.uniform else ""
        return (
            f"means nothing, since those are memorised: after the last step the run loses {self.last:.2f} nats there and "
            f"{self.held_out:.2f} on held-out data{beyond}{f' ({self.uniform:.2f})' if beyond else ''}."
        )

    def _unlearnt(self) -> str:
        return f"means nothing: after the last step the run loses {self.last:.2f} nats, knowing nothing {self.uniform:.2f}."

    def _tiny(self) -> str:
        first, last = apart([self.first, self.last])
        return f"is a percentage of nearly nothing: {first} nats after supervision step 0, {last} after the last."

    def _beside(self) -> list[str]:
        """Return how the plain model of the same FLOPs does where that is what there is to compare with."""
        if self.same_flops is None:
            return []
        words, (ours, theirs) = SAME_FLOPS, apart([self.last, self.same_flops])
        return [f"{words[0].upper()}{words[1:]} loses {theirs} there, the run {ours}."]

    def to_json(self) -> dict[str, Any]:
        """Return all fields and the sentences."""
        return asdict(self) | {"words": self.words}


def spoilt(
    where: str,
    steps: Sequence[float],
    plain: float,
    uniform: float,
    preset: str,
    *,
    held_out: float | None = None,
    same_flops: float | None = None,
) -> Spoilt | None:
    """Say whether refinement is bought or means nothing; None where neither can be said.

    It is questioned from `LEAST_REFINEMENT` on, or from what the preset promises if that is less; memorised data from 0. It is

    - bought where the first step is worse than the plain model of the same parameters by CLEAR of what knowing nothing
      loses, and either the first step is worse than knowing nothing or less than half of the refinement is left against
      that plain model; of memorised data, against that of the same FLOPs;
    - of memorised data where less than KEPT of what the last step knows of them, below knowing nothing, holds on held-out data;
    - unlearnt where the last step loses no less than knowing nothing;
    - tiny where the first step loses less than NEARLY_NOTHING of what knowing nothing loses, and the last gains less than CLEAR.

    Args:
        where: what was measured, as the words name it.
        steps: losses after each supervision step, nats a token.
        plain: loss of the plain model of the same parameters.
        uniform: loss of a model that knows nothing.
        preset: the run's recursion preset.
        held_out: where `steps` are of training data, the run's loss on held-out data.
        same_flops: loss of the plain model of the same FLOPs.
    """
    if len(steps) < 2 or min(steps[0], plain) <= 0:
        return None
    first, last = steps[0], steps[-1]
    refinement, earned = 100 * (first - last) / first, 100 * (plain - last) / plain
    memorised = held_out is not None and last < uniform and uniform - held_out < KEPT * (uniform - last)
    # Of memorised data the smaller plain model is no measure: it has less room to memorise.
    beside = same_flops if memorised else None
    reasons = list[Reason]()
    # A small refinement boasts of nothing, and need not be called out.
    if refinement >= least_refinement(preset):
        if first > plain + CLEAR * uniform and (first > uniform or _earned_less(last, plain, beside, refinement)):
            reasons.append("bought")
        if last >= uniform:
            reasons.append("unlearnt")
        if first - last < CLEAR * uniform and first < NEARLY_NOTHING * uniform:
            reasons.append("tiny")
    if memorised and refinement > 0:
        reasons.insert(reasons.count("bought"), "memorised")
    if not reasons:
        return None
    return Spoilt(where, tuple(reasons), refinement, earned, first, last, plain, uniform, held_out if memorised else None, beside)


def least_refinement(preset: str) -> float:
    """Percent from which a preset's refinement is questioned."""
    promised = PRESETS[preset].refinement
    return LEAST_REFINEMENT if promised is None else min(LEAST_REFINEMENT, promised[0])


def _earned_less(last: float, plain: float, same_flops: float | None, refinement: float) -> bool:
    """Return whether less than half of the refinement is left against a plain model."""
    others = [plain] if same_flops is None else [plain, same_flops]
    return any(100 * (other - last) < refinement / 2 * other for other in others)
