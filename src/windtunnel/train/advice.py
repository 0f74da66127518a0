"""What to do about a band or a gate, in words: nothing is advised that the recipe has already."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources

from windtunnel.recipe import Recipe

CLIP = 1.0
STEPS = 5000
RATES = (0.0005, 0.0003)
BASES = (5.0, 7.0, 10.0)
# honest has the plain model's rates, which are no lower than moderate's.
GENTLER = {"extreme": "aggressive", "aggressive": "moderate"}


@dataclass(frozen=True)
class Settings:
    """What of a recipe decides on advice.

    Attributes:
        preset: of the recursion; None: the model has none. The others are the recipe's keys of these names.
    """

    preset: str | None = None
    weight_base: float = 1.0
    improvement_reward: float = 0.0
    clip: float | None = None
    matrix_lr: float | None = None
    steps: int | None = None


def settings_of(recipe: Recipe) -> Settings:
    """Return the settings of a recipe without stages, or of one stage's recipe."""
    optimizer, steps = recipe.pretrain.optimizer, recipe.budget.steps
    if recipe.trm is None:
        return Settings(None, 1.0, 0.0, optimizer.clip, optimizer.matrix_lr, steps)
    trm = recipe.trm.resolved
    return Settings(trm.preset, trm.weight_base, trm.improvement_reward, optimizer.clip, optimizer.matrix_lr, steps)


def band_advice(settings: Settings) -> dict[str, str]:
    """Return what to do about each band, by the band's name: advice.json, whose {parts} depend on the recipe."""
    texts: dict[str, str] = json.loads((resources.files(__package__) / "advice.json").read_text(encoding="utf-8"))
    refine = more_refinement(settings)
    parts = {
        "gentler": _go_back("Or ", settings),
        "after_nan": _go_back("If losses become NaN, ", settings),
        "clip": _clip(settings),
        "all_alike": " trm.preset=honest weighs all steps alike." if settings.preset != "honest" else "",
        "spoils": "The loss rewards a worse first step, so that refinement" if _incentives(settings) else "Refinement then",
        "no_incentive": _no_incentive(settings),
        "refine": refine[:1].upper() + refine[1:],
        "buys": "" if settings.preset == "extreme" else ", and extreme buys it by spoiling the first step",
    }
    return {band: text.format(**parts) for band, text in texts.items()}


def restore_order(settings: Settings) -> str:
    """Return what to do where a later supervision step is worse than one before."""
    warmup = "see that the warm-up works (stages.pretrain.schedule.warmup_steps)"
    return f"halve the learning rates{_clip(settings)} and {warmup}"


def more_refinement(settings: Settings) -> str:
    """Return what is left to turn where the last supervision step is too little below the first."""
    ways = [f"train longer ({STEPS:,} steps or more)" if (settings.steps or 0) < STEPS else "train longer"]
    ways += ["take preset extreme (trm.preset=extreme)"] if settings.preset != "extreme" else []
    lower = [rate for rate in RATES if settings.matrix_lr is None or rate < settings.matrix_lr]
    named = f" (matrix_lr {' to '.join(map(str, lower))})" if lower else ""
    ways.append(f"lower the learning rates{named}")
    higher = [f"{base:g}" for base in BASES if base > settings.weight_base]
    ways += [f"raise trm.weight_base ({', '.join(higher)})"] if higher else []
    return f"{', '.join(ways[:-1])} or {ways[-1]}"


def lower_norm(settings: Settings) -> str:
    """Return what to do where gradients are too large."""
    key = "stages.pretrain.optimizer.clip"
    if settings.clip is None:
        return f"lower the learning rates or clip ({key}={CLIP})"
    return f"lower the learning rates or clip harder ({key} below {settings.clip:g})"


def not_finite(settings: Settings) -> str:
    """Return what to do where losses or gradients are NaN or infinite."""
    softer = GENTLER.get(settings.preset or "")
    if softer is None:
        return "lower the learning rates; stages.pretrain.precision=fp32 for one run shows whether rounding is the cause"
    return f"too much under preset {settings.preset}: go back to trm.preset={softer}"


def _go_back(condition: str, settings: Settings) -> str:
    softer = GENTLER.get(settings.preset or "")
    if softer is None:
        return ""
    return f" {condition}go back to trm.preset={softer}."


def _clip(settings: Settings) -> str:
    clipped = settings.clip is not None and settings.clip <= CLIP
    return "" if clipped else f", clip gradients (stages.pretrain.optimizer.clip={CLIP})"


def _incentives(settings: Settings) -> list[str]:
    """Return the settings that reward a worse first step, each as the override that takes the reward away."""
    off = ["trm.improvement_reward=0"] if settings.improvement_reward > 0 else []
    return off + (["trm.weight_base=1"] if settings.weight_base > 1 else [])


def _no_incentive(settings: Settings) -> str:
    off = _incentives(settings)
    if not off:
        return ""
    preset = " (trm.preset=honest)" if settings.preset != "honest" else ""
    return f" {' and '.join(off)}{preset} {'take' if len(off) > 1 else 'takes'} the incentive away."
