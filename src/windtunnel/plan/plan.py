"""Plan one stage of a recipe on a rig: layout, memory, time, money and disk, or a refusal with the nearest plans that work.

Each kind of stage has a planner (`PLANNERS`) that drafts: it searches a layout and says what the stage takes. Everything
after that - the run's length within its budget, disk, refusals, the plan itself - is the same for all kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module

from windtunnel.recipe import Recipe, UserError
from windtunnel.rig import Rig

from . import memory
from .alternatives import AS_IT_IS, Change, alternatives
from .calibration import correction_of
from .constants import Constants
from .cost import (
    EPOCHS_ASK,
    Length,
    Pace,
    budget_notes,
    disk_gib,
    epoch_warnings,
    estimate_corpus_tokens,
    money_and_disk,
    over_fed,
    run_length,
)
from .own_engine import not_trained, without_effect
from .search import Candidate
from .types import Alternative, Moment, Option, Plan, Role, Size

# Kind of stage -> the module here whose PLANNER plans it, imported on use.
PLANNERS = {"pretrain": ".pretrain", "sft": ".finetune", "rl": ".grpo"}


@dataclass(frozen=True)
class Draft:
    """What a planner has found out about a stage on a rig.

    Attributes:
        best: the layout of the ranks that train. ranked: the best few, where they are worth showing.
        method: see `Plan`. params, parameters: of the whole model; vocab: rows or tokens of its vocabulary.
        tokens: of one step. step_seconds, terms, hidden: of one step; flops: of training a token; gpus: that MFU counts.
        startup: seconds by part, once a run. pace: with validations spread over the steps.
        derived_tokens: length of a run whose budget names no limit, for the reason `derived_by`.
        corpus, corpus_source: tokens of one epoch, None where they are not known; epoch_tokens: the same as steps count them.
        checkpoint_gib, kept_gib, base_gib: a whole checkpoint, one that keeps weights only, what lies on the disk beside.
        token_bytes: of a prepared token. repeats: whether another epoch is the same data again.
        masked: of `flops`, those of attention to what comes later, which PaLM's convention counts and nothing computes.
        reasons: against the stage on this rig.
        feeds: what the data would suffice for, asked where the run repeats them too often.
        notes: what was adjusted and what to know, given the length and whether it fits.
        shared: how kinds of process share the GPUs, before the layout in words. after: seconds of a step before its training.
        sources: where each number comes from, given the length.
    """

    c: Constants
    best: Candidate
    model: str
    method: str
    params: int
    parameters: dict[str, int]
    vocab: int
    tokens: float
    step_seconds: float
    terms: dict[str, float]
    hidden: float
    flops: float
    gpus: int
    startup: dict[str, float]
    pace: Pace
    derived_tokens: float
    derived_by: str
    corpus: float | None
    epoch_tokens: float | None
    checkpoint_gib: float
    kept_gib: float
    token_bytes: int
    hyper: dict[str, float]
    error: dict[str, float]
    notes: Callable[[Length, bool], list[str]]
    sources: Callable[[Length], dict[str, str]]
    feeds: Callable[[Length], list[str]] = lambda _: []
    reasons: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    ranked: tuple[Candidate, ...] = ()
    roles: dict[str, Role] = field(default_factory=dict)
    shared: str = ""
    depth: int | None = None
    base_gib: float = 0.0
    after: float = 0.0
    repeats: bool = True
    masked: float = 0.0


@dataclass(frozen=True)
class Case:
    """What is planned: a recipe of one stage, a rig, and what is known beside them (see `make_plan`)."""

    recipe: Recipe
    rig: Rig
    vocab: int | None = None
    constants: Constants | None = None
    corpus_tokens: float | None = None

    @cached_property
    def corpus(self) -> tuple[float | None, str]:
        """Return tokens of one epoch, None where they are not known, and where that came from."""
        return estimate_corpus_tokens(self.recipe) if self.corpus_tokens is None else (self.corpus_tokens, "prepared data")


class StagePlanner:
    """What planning needs of one kind of stage; only `draft` has no default."""

    def draft(self, case: Case) -> Draft:
        """Search a layout and say what the stage takes. Raises UserError: it cannot mean anything on this rig."""
        raise NotImplementedError

    def resolve(self, case: Case) -> Recipe:
        """Return the recipe with what 'auto' stands for on this rig."""
        return case.recipe

    def changes(self, recipe: Recipe, rig: Rig) -> Iterable[Iterable[Change]]:
        """Return kinds of change that need less memory on the same rig; of each the first that fits is worth naming."""
        return ()

    def elsewhere(self, recipe: Recipe) -> Iterable[Change]:
        """Return what to try on other rigs, the recipe as it is first."""
        return (AS_IT_IS,)

    def stand_ins(self, recipe: Recipe, rig: Rig) -> Iterable[Iterable[Change]]:
        """Return kinds of stand-in for the model, the best of each first."""
        return ()

    def sizes(self, case: Case) -> tuple[Size, ...] | None:
        """Return the numbers of GPUs of the rig's kind that fit; None: of this kind of stage that is not asked."""
        return None

    def hopeless(self, recipe: Recipe) -> Callable[[Rig], bool]:
        """Return what tells of a rig whether it is known at once that no layout fits, by what all ranks together must hold."""
        return lambda rig: False


def planner_of(recipe: Recipe) -> StagePlanner:
    """Return the planner of the stage that a recipe trains."""
    # A recipe of several stages is planned as its first; stages.py plans each of them.
    planner: StagePlanner = import_module(PLANNERS[recipe.training[0].kind], __package__).PLANNER
    return planner


def make_plan(
    recipe: Recipe,
    rig: Rig,
    vocab: int | None = None,
    calibration: Constants | None = None,
    corpus_tokens: float | None = None,
    suggest: bool = True,
) -> Plan:
    """Plan a recipe of one training stage on a rig in milliseconds, without torch.

    Args:
        recipe: one stage's, as `stage_recipe` resolves it; of a recipe of several stages the first is planned.
        rig: what to train on.
        vocab: tokens of the prepared vocabulary, BOS included; None: as far as the recipe tells.
        calibration: constants measured on this kind of GPU; None: those that ship.
        corpus_tokens: training tokens of one epoch (of RL: of all prompts) once they are known; None: estimated.
        suggest: where the plan does not fit, look for the nearest that do; False saves that time.

    Raises:
        UserError: the recipe cannot mean anything on this rig (fp8 without the hardware, a micro-batch
            that divides nothing, a layout that contradicts itself). A plan that is merely too big comes
            back with fits=False.
    """
    planner = planner_of(recipe)
    case = Case(recipe, rig, vocab, calibration, corpus_tokens)
    draft = planner.draft(case)
    best, layout = draft.best, draft.best.layout
    length, disk, more, helps = afford(recipe, rig, draft)
    # Looking for what would fit plans a dozen recipes: only where this one does not, and somebody reads it.
    options = alternatives(recipe, rig, planner) if draft.reasons and suggest else []
    reasons = [*draft.reasons, *more]
    # While it does not fit, no room in the budget or on the disk makes it a plan that works.
    options += [] if draft.reasons else helps
    per_second = draft.tokens / draft.step_seconds
    repeated = length.epochs if draft.repeats else None
    notes = [*draft.notes(length, not draft.reasons), *budget_notes(recipe.budget, rig, int(draft.tokens), draft.epoch_tokens)]
    mfu, counted = _utilisation(draft, per_second)
    made = Plan(
        recipe=recipe.name,
        rig=rig.name,
        machine=rig.describe(),
        fits=not reasons,
        needs_yes=repeated is not None and repeated > EPOCHS_ASK,
        model=draft.model,
        method=draft.method,
        depth=draft.depth,
        params=draft.params,
        parameters=draft.parameters,
        vocab=draft.vocab,
        layout=layout,
        peak_gib=best.peak_gib,
        limit_gib=best.limit_gib,
        components=best.memory.components,
        timeline=_timeline(draft),
        peak_moment=best.memory.moments[best.memory.peak].name,
        step_seconds=draft.step_seconds,
        step_terms=draft.terms,
        hidden_seconds=draft.hidden,
        bound=max(draft.terms, key=lambda name: draft.terms[name]),
        tokens_per_second=per_second,
        mfu=mfu,
        steps=length.steps,
        tokens=length.tokens,
        derived_tokens=draft.derived_tokens,
        startup=draft.startup,
        hours=length.hours,
        dollars=length.dollars,
        dollars_per_hour=rig.dollars_per_hour,
        epochs=length.epochs,
        corpus_tokens=draft.corpus,
        ended_by=length.ended_by,
        ends=length.ends,
        checkpoint_gib=draft.checkpoint_gib,
        disk_gib=disk,
        disk_free_gib=rig.disk_free_gib,
        hyper=draft.hyper,
        roles=draft.roles,
        options=_options(draft, length, rig),
        reasons=tuple(reasons),
        alternatives=tuple(options),
        sizes=planner.sizes(case) if suggest else None,
        warnings=(*epoch_warnings(repeated), *(draft.feeds(length) if over_fed(repeated) else ()), *draft.warnings),
        notes=(*notes, *not_trained(recipe, layout), *without_effect(recipe, layout), *rig.notes),
        error=draft.error,
        sources=_sources(draft, rig, length) | draft.sources(length) | counted,
        correction=correction_of(best.memory.components, draft.c.time_factor),
    )
    return replace(made, warnings=(*made.warnings, *_tight(made)))


def _utilisation(draft: Draft, per_second: float) -> tuple[float, dict[str, str]]:
    """Return MFU, and how it was counted where that is not PaLM's way.

    That counts attention to what comes later, which no kernel computes: of long sequences it would be more than the rate that
    products reach at all.
    """
    peak = draft.best.timed.peak_flops * draft.gpus
    usual = draft.flops * per_second / peak
    if usual <= draft.c.matmul_efficiency or not draft.masked:
        return usual, {}
    computed = (draft.flops - draft.masked) * per_second / peak
    said = f"FLOPs that are computed, against the dense peak; {usual:.0%} with attention to later tokens (PaLM, appendix B)"
    return computed, {"mfu": said}


def _tight(plan: Plan) -> list[str]:
    """Say that a plan which fits may not, by its own error."""
    if plan.verdict != "tight":
        return []
    most, error = plan.peak_gib * (1 + plan.error["memory"]), plan.error["memory"]
    less = "a smaller micro-batch, or windtunnel plan --calibrate on the GPU, makes sure"
    return [f"tight: with the stated error of {error:.0%} a rank may need {most:.1f} of {plan.limit_gib:.1f} GiB; {less}"]


def afford(recipe: Recipe, rig: Rig, draft: Draft) -> tuple[Length, float, list[str], list[Alternative]]:
    """Return a run's length and GiB of disk, and what its budget or the disk has against it with what would help."""
    length = run_length(recipe, rig, int(draft.tokens), draft.derived_tokens, draft.pace, draft.epoch_tokens, draft.derived_by)
    disk = disk_gib(
        draft.checkpoint_gib, draft.kept_gib, recipe.checkpoints, length, draft.corpus, draft.token_bytes, draft.base_gib
    )
    return length, disk, *money_and_disk(recipe.budget, rig, draft.pace, length, disk)


def resolve(
    recipe: Recipe,
    rig: Rig,
    vocab: int | None = None,
    corpus_tokens: float | None = None,
) -> Recipe:
    """Return the recipe with depth 'auto' made a number for this rig; make_plan says why in its notes."""
    return planner_of(recipe).resolve(Case(recipe, rig, vocab, corpus_tokens=corpus_tokens))


def refuse(plan: Plan) -> UserError:
    """Return the error to raise where a run was to begin whose plan does not fit."""
    assert not plan.fits
    message = f"{plan.recipe} does not fit rig {plan.rig}: " + "; ".join(plan.reasons)
    # A run is on this machine: what needs another rig is no option of the command that is refused.
    options = [f"{a.change} ({a.why})" for a in plan.alternatives if not a.elsewhere]
    if len(options) < len(plan.alternatives):
        options.append("another rig: windtunnel plan names those that do")
    return UserError(message, "; or ".join(options) if options else "choose a smaller model or a larger rig")


def parts_text(components: dict[str, float], digits: str = ".1f") -> str:
    """Write components of at least 0.05 GiB, the largest first."""
    ordered = sorted(components.items(), key=lambda item: -item[1])
    return " + ".join(f"{name.replace('_', ' ')} {gib:{digits}}" for name, gib in ordered if gib >= 0.05)


def _timeline(draft: Draft) -> tuple[Moment, ...]:
    """Return the moments with their seconds after the step's beginning."""
    time, held = draft.best.timed, draft.best.memory
    return tuple(
        replace(moment, seconds=draft.after + forward * time.forward + backward * time.backward)
        for moment, (forward, backward) in zip(held.moments, held.done, strict=True)
    )


def _options(draft: Draft, length: Length, rig: Rig) -> tuple[Option, ...]:
    """Return the best layouts that fit, by what the same run would cost with each."""
    options = []
    for candidate in draft.ranked:
        hours = length.hours * candidate.token_seconds / draft.best.token_seconds
        dollars = None if rig.dollars_per_hour is None else hours * rig.dollars_per_hour
        options.append(Option(candidate.layout, candidate.peak_gib, candidate.timed.seconds, hours, dollars))
    return tuple(options)


def _sources(draft: Draft, rig: Rig, length: Length) -> dict[str, str]:
    """Say where the numbers come from that all plans have."""
    c, best, error = draft.c, draft.best, draft.error
    moment = best.memory.moments[best.memory.peak].name
    return {
        "params": "shape arithmetic",
        "layout": "fastest layout that fits" if best.fits else "leanest layout",
        "peak_gib": f"the moment '{moment}', ±{error['memory']:.0%} ({c.source})",
        "limit_gib": f"{c.usable_share:.0%} of the GPU" if rig.gpu else f"{c.cpu_usable_share:.0%} of RAM",
        "step_seconds": f"sum of the terms less what overlaps, ±{error['time']:.0%} ({c.source})",
        "tokens_per_second": "batch tokens / step time",
        "steps": f"ended by {length.ended_by}",
        "tokens": "steps x batch tokens",
        "hours": "starting up, steps, last checkpoint",
        "dollars": rig.price_note,
        **{f"components.{name}": source for name, source in memory.SOURCES.items()},
    }
