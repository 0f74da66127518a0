"""make_plan for supervised fine-tuning of a Hugging Face model."""

from __future__ import annotations

from dataclasses import replace

from windtunnel.recipe import Recipe, UserError
from windtunnel.rig import Rig

from ..corpus import estimate_corpus_tokens
from ..cost import Length, Pace, run_length
from ..limits import money_and_disk
from ..types import Alternative, Option, Plan
from .assemble import Sized, Weighed, common_sources, plan_of
from .constants import HFConstants, load_hf_constants
from .disk import checkpoint_gib, disk_gib
from .memory import SOURCES, least_gib
from .refusal import impossible, memory_reason
from .search import Candidate, Found, gpu_limit, search
from .startup import startup_seconds
from .totals import Totals, totals
from .variants import Scales, alternatives
from .workload import fine_tuning

ONE_EPOCH = "one epoch, as the budget names no limit"
RATES = {"full": 1e-5, "adapter": 2e-4}


def weigh(recipe: Recipe, rig: Rig) -> Weighed:
    """Whether the recipe fits the rig, in its best layout. Raises UserError as `plan_fine_tuning` does."""
    if rig.gpu is None:
        raise UserError(f"rig {rig.name} has no GPU")
    work = fine_tuning(recipe)
    constants = load_hf_constants(rig.gpu.name)
    best = search(totals(work), rig, constants, rig.gpus, gpu_limit(rig, constants)).best
    return Weighed(best.fits and impossible(work) is None, best.peak_gib, best.limit_gib, best.layout.describe())


def plan_fine_tuning(
    recipe: Recipe, rig: Rig, constants: HFConstants | None = None, corpus_tokens: float | None = None, suggest: bool = True
) -> Plan:
    """Plan `stages.sft` on a rig without torch.

    Args:
        constants: measured on this kind of GPU; None: those that ship.
        corpus_tokens: training tokens of one epoch once they are known.
        suggest: look for alternatives where the plan does not fit.

    Raises:
        UserError: model or layout cannot be, or the rig has no GPU.
    """
    work = fine_tuning(recipe)
    c = constants or load_hf_constants(rig.gpu.name if rig.gpu else "")
    corpus, corpus_source = (corpus_tokens, "prepared data") if corpus_tokens is not None else estimate_corpus_tokens(recipe)
    # What cannot be trained in fewer bits is weighed as it would be in bf16.
    sums = totals(work if impossible(work) is None else replace(work, weights="bf16"))
    found = search(sums, rig, c, rig.gpus, gpu_limit(rig, c) if rig.gpu else 0.0)
    best = found.best
    assert best.time is not None
    saved = checkpoint_gib(sums)
    startup = startup_seconds(sums, rig, c, saved)
    speed = Pace(sum(startup.values()), best.time.seconds)
    length = run_length(
        recipe, rig, best.layout.batch_tokens, corpus or 0.0, speed, corpus, "one epoch, as the budget names no limit"
    )
    disk = disk_gib(sums, recipe.checkpoints, length.hours, corpus)
    reasons, options = _refusal(recipe, rig, sums, best, speed, length, disk, suggest)
    sized = Sized(length, startup, corpus, saved, disk, reasons, options)
    return replace(
        plan_of(recipe, rig, c, work, best, sized),
        hyper={"batch_tokens": float(best.layout.batch_tokens), "learning_rate": learning_rate(recipe)},
        options=ranked(found, length, rig),
        sources=_sources(rig, c, best, length, corpus_source, recipe),
    )


def ranked(found: Found, length: Length, rig: Rig) -> tuple[Option, ...]:
    """The best layouts that fit, by what the same run would cost with each."""
    options = []
    best = found.best
    assert best.time is not None
    for candidate in found.ranked:
        assert candidate.time is not None
        slower = candidate.time.seconds / candidate.layout.batch_tokens / (best.time.seconds / best.layout.batch_tokens)
        hours = length.hours * slower
        dollars = None if rig.dollars_per_hour is None else hours * rig.dollars_per_hour
        options.append(Option(candidate.layout, candidate.peak_gib, candidate.time.seconds, hours, dollars))
    return tuple(options)


def learning_rate(recipe: Recipe) -> float:
    """The recipe's, or what is usual for the method."""
    stage = recipe.sft
    assert stage is not None
    adapter = getattr(recipe.model, "adapter", None)
    return stage.learning_rate or RATES["adapter" if adapter else "full"]


def _sources(rig: Rig, c: HFConstants, best: Candidate, length: Length, corpus: str, recipe: Recipe) -> dict[str, str]:
    given = recipe.sft is not None and recipe.sft.learning_rate
    return common_sources(rig, c, best, length, corpus) | {
        "tokens_per_second": "batch tokens / step time",
        "tokens": "steps x batch tokens",
        "hours": "starting up, steps, last checkpoint",
        "epochs": f"tokens / corpus ({corpus})",
        "hyper.batch_tokens": "recipe",
        "hyper.learning_rate": "recipe" if given else "1e-5 for all weights, 2e-4 for an adapter",
        **{f"components.{name}": source for name, source in SOURCES.items()},
    }


def _refusal(
    recipe: Recipe, rig: Rig, sums: Totals, best: Candidate, speed: Pace, length: Length, disk: float, suggest: bool
) -> tuple[list[str], list[Alternative]]:
    reasons: list[str] = []
    never = impossible(fine_tuning(recipe))
    if never:
        reasons.append(never)
    elif not best.fits:
        reasons.append(memory_reason(sums, best, rig))
    options = (
        list(alternatives(recipe, rig, Scales(weigh, lambda new: least_gib(fine_tuning(new))))) if reasons and suggest else []
    )
    more, further = money_and_disk(recipe.budget, rig, speed, length, disk)
    return reasons + more, options + further
