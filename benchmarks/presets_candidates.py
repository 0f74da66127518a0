"""The ways of supervising that `presets.py` compares: a few keys of the recipe `trm` each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

RATES = ("matrix_lr", "embedding_lr", "unembedding_lr", "scalar_lr")
NEVER = 64
EQUAL = {"trm.weight_base": 1, "trm.improvement_reward": 0, "trm.detach_from": NEVER, "trm.updates": "once"}
# Its optimizer and schedule are those of `equal`, clipping too.
PLAIN = {"trm.preset": "honest"} | EQUAL


@dataclass(frozen=True)
class Candidate:
    """One way of training.

    Attributes:
        keys: of the recipe. rates: factor on the derived learning rates.
        kind: 'preset', what a preset can stand for; 'other', another recursion; 'plain', no recursion.
        parts: steps that a batch is cut into, each with an update.
    """

    words: str
    keys: dict[str, Any]
    rates: float = 1.0
    kind: str = "preset"
    parts: int = 1


def guide(name: str, derived: bool) -> Candidate:
    """A preset of the guide, at its own rates or at derived ones."""
    own = {f"stages.pretrain.optimizer.{rate}": "null" for rate in RATES[:2]} if derived else {}
    return Candidate(f"the guide's {name}, {'derived' if derived else 'its own'} rates", {"trm.preset": name} | own)


def ours(words: str, rates: float = 1.0, kind: str = "preset", parts: int = 1, **changes: Any) -> Candidate:
    """Equal weights, no reward, one update, gradients through all supervision steps; then what is changed."""
    changed = {f"trm.{key}": value for key, value in changes.items()}
    return Candidate(words, {"trm.preset": "honest"} | EQUAL | changed, rates, kind, parts)


CANDIDATES: dict[str, Candidate] = {
    "equal": ours("equal weights, one update a batch, gradients through all steps, derived rates"),
    "each": ours("an update after each supervision step", updates="each", detach_from=0),
    "plain-flops": Candidate("plain, as large as the FLOPs allow, same tokens", PLAIN, kind="plain"),
    # As many updates as `each`, at its rates (the rules would halve them for a quarter of the batch).
    "equal-parts": ours("as equal, in batches of a quarter, rates as equal's", 2.0, "other", 4),
    "plain-flops-parts": Candidate("as plain-flops, in batches of a quarter, rates as its", PLAIN, 2.0, "plain", 4),
    "base-2": ours("step i weighs 2^i", weight_base=2),
    "detach-0": ours("detached after every step", detach_from=0),
    "detach-2": ours("detached from step 2", detach_from=2),
    "half": ours("rates x 0.5", 0.5),
    "double": ours("rates x 2", 2.0),
    "aggressive": guide("aggressive", derived=False),
    "aggressive-derived": guide("aggressive", derived=True),
    "extreme": guide("extreme", derived=False),
    "extreme-derived": guide("extreme", derived=True),
    "moderate": guide("moderate", derived=False),
    "plain-parameters": Candidate("plain, same parameters, same tokens, fewer FLOPs", PLAIN, kind="plain"),
    "supervision-2": ours("two supervision steps of twice the passes", kind="other", supervision=2),
    "plain-longer": Candidate("plain, same parameters, same FLOPs, more tokens", PLAIN, kind="plain"),
    # Not in the first round: what it suggests to combine.
    "each-half": ours("an update after each step, rates x 0.5", 0.5, updates="each", detach_from=0),
    "each-double": ours("an update after each step, rates x 2", 2.0, updates="each", detach_from=0),
    "each-base-2": ours("an update after each step, step i weighs 2^i", updates="each", detach_from=0, weight_base=2),
    "base-5": ours("step i weighs 5^i", weight_base=5),
    "plain-flops-half": Candidate("plain of the same FLOPs, rates x 0.5", PLAIN, 0.5, "plain"),
    "plain-flops-double": Candidate("plain of the same FLOPs, rates x 2", PLAIN, 2.0, "plain"),
}
DECIDE = list(CANDIDATES)[:5]
"""What the decision between one update a batch and an update after each supervision step takes, and plain models beside it."""
ON_A_GPU = [*DECIDE, "double", "each-half", "aggressive", "base-2", "each-double", "detach-0"]
ON_A_CPU = [*list(CANDIDATES)[:7], "double", "aggressive", "aggressive-derived", "extreme"]
