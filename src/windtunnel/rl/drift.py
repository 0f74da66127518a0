"""Rewards that part over rounds: a judge's from the share of right answers, and training's from held-out answers'."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from windtunnel.recipe import GRPO

ROUNDS = 8
"""Of each of the two stretches that are compared."""
READINGS = 8
LEAST_ERROR = 1e-3
"""Of a mean: what differs by less is the same, however steady it is."""
NO_JUDGES = ("reward_deviation", "reward_plan")


class Drift:
    """The last rounds and held-out answers of a stage; rank 0's counts. Its state is JSON and goes into checkpoints.

    Args:
        stage: whose judges; of one whose weight is below 0, less is more.
    """

    def __init__(self, stage: GRPO) -> None:
        signs = {f"reward_{source.name}": math.copysign(1.0, source.weight) for source in reversed(stage.sources)}
        self._signs = {name: sign for name, sign in signs.items() if name not in NO_JUDGES}
        self._prompts = stage.prompts
        self._seen, self._unsaid = 0, False
        self._level: float | None = None
        self._rounds: list[dict[str, float]] = []
        self._since: list[list[float]] = []
        self._readings: list[dict[str, Any]] = []

    def note(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Take in a round; return `judges_apart` and `held_out_apart` where there is enough to tell."""
        if not metrics:
            return {}
        self._seen += 1
        if metrics.get("level") != self._level:  # harder prompts: fewer right answers are no sign of anything
            self._rounds, self._level = [], metrics.get("level")
        kept = {name: value for name, value in metrics.items() if name == "right" or name in self._signs}
        self._rounds = [*self._rounds, kept][-2 * ROUNDS :]
        self._since.append([metrics["reward"], metrics["reward_deviation"]])
        found = {}
        # Two stretches of as many rounds are compared; with a single judge there is nothing that could part.
        if len(self._rounds) == 2 * ROUNDS and len(kept) > 2:
            found["judges_apart"] = self._judges_apart()
        # Held-out answers before the first round had no training reward to stand beside; they get this one's.
        if self._readings and self._readings[-1]["reward"] is None:
            self._readings[-1] |= self._trained()
        if self._unsaid:
            self._unsaid = False
            if len(self._readings) > 1:
                found["held_out_apart"] = self._held_out_apart()
        return found

    def held_out(self, right: float, judged: int) -> None:
        """Take in held-out answers to always the same prompts: the share of right ones, and how many were judged."""
        if not judged:
            return
        reading = {"seen": self._seen, "right": right, "judged": judged, "reward": None, "error": None}
        reading |= self._trained() if self._since else {}
        others = [one for one in self._readings if one["seen"] != self._seen]  # a run that goes on may be asked again
        same = [one for one in self._readings if one["seen"] == self._seen and not self._since]
        reading |= {name: same[0][name] for name in ("reward", "error")} if same else {}
        # The best reading stays however old it is: it is what later ones are held against.
        best = max(others, key=lambda one: one["right"], default=None)
        recent = others[-READINGS:]
        self._readings = [*([best] if best is not None and best not in recent else []), *recent, reading]
        self._since, self._unsaid = [], True

    def state(self) -> dict[str, Any]:
        """Return JSON values from which `load` goes on."""
        return {
            "seen": self._seen, "level": self._level, "rounds": self._rounds, "since": self._since,
            "readings": self._readings, "unsaid": self._unsaid,
        }  # fmt: skip

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Go on from a state; None: begin again."""
        state = state or {}
        self._seen, self._level = int(state.get("seen", 0)), state.get("level")
        self._rounds = [dict(one) for one in state.get("rounds", ())]
        self._since = [list(one) for one in state.get("since", ())]
        self._readings = [dict(one) for one in state.get("readings", ())]
        self._unsaid = bool(state.get("unsaid", False))

    def _judges_apart(self) -> float:
        fall = -_change([one["right"] for one in self._rounds])
        largest = 0.0
        for name in self._rounds[0]:
            if name != "right" and all(name in one for one in self._rounds):
                rise = self._signs[name] * _change([one[name] for one in self._rounds])
                # The smaller of the two: either one alone is what training is for, or bad luck.
                largest = max(largest, min(rise, fall))
        return largest

    def _held_out_apart(self) -> float:
        """Return how far the newest reading and the best one before it part."""
        newest = self._readings[-1]
        best = max(self._readings[:-1], key=lambda one: one["right"])
        if newest["reward"] is None or best["reward"] is None:
            return 0.0
        # Of a share of n answers that are right or wrong the variance is p (1 - p) / n.
        errors = [one["right"] * (1 - one["right"]) / one["judged"] for one in (newest, best)]
        fall = (best["right"] - newest["right"]) / max(LEAST_ERROR, math.sqrt(math.fsum(errors)))
        rise = (newest["reward"] - best["reward"]) / max(LEAST_ERROR, math.hypot(newest["error"], best["error"]))
        return max(0.0, min(fall, rise))

    def _trained(self) -> dict[str, float]:
        """Return mean reward and its standard error of the rounds since the last reading; answers to a prompt count as one."""
        count = len(self._since)
        mean = math.fsum(one[0] for one in self._since) / count
        square = math.fsum(one[1] ** 2 for one in self._since) / count
        return {"reward": mean, "error": math.sqrt(square / (count * self._prompts))}


def _change(values: Sequence[float]) -> float:
    """Return the newer half's mean less the older's, in standard errors."""
    older, newer = values[: len(values) // 2], values[len(values) // 2 :]
    error = math.sqrt(math.fsum(statistics.variance(part) / len(part) for part in (older, newer)))
    return (statistics.fmean(newer) - statistics.fmean(older)) / max(error, LEAST_ERROR)
