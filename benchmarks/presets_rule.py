"""How `presets.py` finds the winner of its candidates."""

from __future__ import annotations

import math
import statistics
from typing import Any

from presets_candidates import CANDIDATES

RULE = (
    "Of the candidates that a preset can stand for, the one with the lowest mean held-out loss over the seeds that all have. "
    "It is decided where it beats `equal` in every seed, and by more on average than the larger of both spreads over seeds "
    "(largest less smallest loss); `each` must beat `equal-parts` so too, which has as many updates by smaller batches. "
    "Otherwise `equal`, the plainest, stays."
)


def verdict(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What RULE says of the results: the winner, whether that is decided, and all differences from `equal`."""
    seeds = {run["seed"] for run in results["equal"]["runs"]}
    table = {name: {run["seed"]: run["loss"] for run in r["runs"]} for name, r in results.items()}
    table = {name: losses for name, losses in table.items() if set(losses) == seeds}
    means = {name: statistics.fmean(losses.values()) for name, losses in table.items()}
    # A loss that is no number is never the lowest.
    eligible = [name for name in table if results[name]["kind"] == "preset" and math.isfinite(means[name])]
    best = min(eligible, key=lambda name: means[name])
    rivals = ["equal"] + ["equal-parts"] * (CANDIDATES[best].keys.get("trm.updates") == "each")
    beaten = {name: beats(table[best], table[name]) for name in rivals if name in table}
    decided = best != "equal" and len(beaten) == len(rivals) and all(beaten.values())
    return {
        "rule": RULE,
        "seeds": sorted(seeds),
        "lowest": best,
        "beats": beaten,
        "decided": decided,
        "winner": best if decided else "equal",
        "better_than_equal_by": {
            name: [round(table["equal"][seed] - losses[seed], 4) for seed in sorted(seeds)] for name, losses in table.items()
        },
        "not_all_seeds": sorted(set(results) - set(table)),
        "lowest_plain": min((n for n in means if results[n]["kind"] == "plain"), key=lambda n: means[n], default=None),
    }


def beats(one: dict[int, float], other: dict[int, float]) -> bool:
    """Whether `one` (seed -> loss) is below in every seed, and by more on average than the larger spread of both."""
    gains = [other[seed] - loss for seed, loss in one.items()]
    spread = max(max(losses.values()) - min(losses.values()) for losses in (one, other))
    return len(gains) > 1 and min(gains) > 0 and statistics.fmean(gains) > spread
