"""One job on several rigs: the same tokens through every stage, hours and dollars of each rig in all, and what waiting costs.

A ladder says what each rig rehearses for the last one; here every rig does the whole job. How long that is the last rig's plan
decides, by the recipe's budget: on the others hours and dollars are left open, so that they end at the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from windtunnel.recipe import Budget, Recipe, UserError, stage_recipe
from windtunnel.rig import Rig

from .job import Job, plan_job
from .plan import make_plan, resolve
from .text import dollars_text, hours_text
from .types import Plan

RIG_COLUMNS = ("rig", "stages", "time", "cost", "with waiting")
OWN = "here"


@dataclass(frozen=True)
class RigTotal:
    """The whole job on one rig.

    Attributes:
        stages: name and hours of each that trains. hours: of everything, downloads and evaluation too where they are known.
        dollars: None where no price is known; one's own machine costs none.
        waiting: dollars and the worth of the hours together; None where no hour has one, or no price is known.
        reason: why the rig cannot do it; the figures are then of nothing.
    """

    rig: str
    stages: tuple[tuple[str, float], ...]
    hours: float
    dollars: float | None
    waiting: float | None
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON; keys are stable."""
        return {
            "rig": self.rig,
            "fits": not self.reason,
            "reason": self.reason,
            "stages": [{"stage": name, "hours": hours} for name, hours in self.stages],
            "hours": None if self.reason else self.hours,
            "dollars": self.dollars,
            "with_waiting": self.waiting,
        }


@dataclass(frozen=True)
class SideBySide:
    """Rigs in the order given; `hour_value`: dollars that an hour of waiting is worth, None where nothing was said."""

    recipe: str
    measure: str
    hour_value: float | None
    rigs: tuple[RigTotal, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON; keys are stable."""
        return {"measure": self.measure, "hour_value": self.hour_value, "rigs": [rig.to_json() for rig in self.rigs]}

    def rows(self) -> list[tuple[str, ...]]:
        """Return one row a rig under RIG_COLUMNS."""
        return [_row(rig) for rig in self.rigs]

    def remarks(self) -> list[tuple[str, str]]:
        """Return (label, text): what is compared, the cheapest and the fastest, and why a rig is out."""
        said = [("note", self.measure)]
        able = [rig for rig in self.rigs if not rig.reason]
        priced = [rig for rig in able if rig.dollars is not None]
        if len(able) > 1:
            fast = min(able, key=lambda rig: rig.hours)
            said.append(("fastest", f"{fast.rig}: {hours_text(fast.hours)}"))
        if len(priced) > 1:
            cheap = min(priced, key=lambda rig: rig.dollars or 0.0)
            said.append(("cheapest", f"{cheap.rig}: {dollars_text(cheap.dollars)}"))
            if self.hour_value is not None:
                best = min(priced, key=lambda rig: rig.waiting or 0.0)
                waited = f"with ${self.hour_value:g} for an hour of waiting, {dollars_text(best.waiting)}"
                said.append(("cheapest", f"{best.rig}: {waited}"))
        return [*said, *(("cannot", f"{rig.rig}: {rig.reason}") for rig in self.rigs if rig.reason)]


def compare_rigs(recipe: Recipe, rigs: Sequence[Rig], hour_value: float | None = None) -> SideBySide | None:
    """Plan the whole job on every rig, as long as the last one that can do it makes it; None where none can.

    hour_value: dollars that an hour until the job is done is worth.
    """
    for target in reversed(rigs):
        try:
            fixed = resolve(recipe, target) if not recipe.staged else recipe
            whole = _stages(fixed, target, None)
        except UserError:
            continue
        if all(plan.fits for _, plan in whole):
            break
    else:
        return None
    # A depth that follows the budget is the target's on all rigs.
    fixed = _at_depths(fixed, whole)
    tokens = {name: plan.tokens for name, plan in whole}
    totals = tuple(
        _total(recipe, rig, hour_value, whole if rig is target else None, fixed, tokens) for rig in rigs
    )  # fmt: skip
    each = ", ".join(f"{name} {plan.steps:,} steps" for name, plan in whole)
    return SideBySide(recipe.name, f"as many tokens on every rig as on {target.name} ({each} there)", hour_value, totals)


def _total(
    recipe: Recipe,
    rig: Rig,
    hour_value: float | None,
    known: list[tuple[str, Plan]] | None,
    fixed: Recipe,
    tokens: dict[str, float],
) -> RigTotal:
    try:
        plans = known or _stages(fixed, rig, tokens)
    except UserError as error:
        return RigTotal(rig.name, (), 0.0, None, None, error.message)
    unfit = [f"{name}: {plan.reasons[0]}" for name, plan in plans if not plan.fits]
    if unfit:
        return RigTotal(rig.name, (), 0.0, None, None, unfit[0])
    job: Job | None = plan_job(recipe, rig, plans)
    hours = job.hours if job is not None else sum(plan.hours for _, plan in plans)
    price = rig.dollars_per_hour if rig.dollars_per_hour is not None or rig.name != OWN else 0.0
    dollars = None if price is None else hours * price
    waiting = None if hour_value is None or dollars is None else dollars + hour_value * hours
    return RigTotal(rig.name, tuple((name, plan.hours) for name, plan in plans), hours, dollars, waiting)


def _stages(recipe: Recipe, rig: Rig, tokens: dict[str, float] | None) -> list[tuple[str, Plan]]:
    """Plan every stage that trains; to so many tokens each, whatever that takes, where they are given."""
    plans: list[tuple[str, Plan]] = []
    for stage in recipe.training:
        hours, dollars = sum(plan.hours for _, plan in plans), sum(plan.dollars or 0.0 for _, plan in plans)
        if tokens is None:
            own = stage_recipe(recipe, stage.name, hours=hours, dollars=dollars) if recipe.staged else recipe
        else:
            own = stage_recipe(recipe, stage.name) if recipe.staged else recipe
            own = own.model_copy(update={"budget": Budget(tokens=max(1, round(tokens[stage.name])))})
        plans.append((stage.name, make_plan(own, rig, suggest=False)))
    return plans


def _at_depths(recipe: Recipe, plans: list[tuple[str, Plan]]) -> Recipe:
    """Return the recipe with 'auto' made the first stage's depth."""
    depth = plans[0][1].depth
    if depth is None or getattr(recipe.model, "depth", None) != "auto":
        return recipe
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"depth": depth})})


def _row(rig: RigTotal) -> tuple[str, ...]:
    if rig.reason:
        return (rig.rig, "cannot do it", "", "", "")
    stages = ", ".join(f"{name} {hours_text(hours)}" for name, hours in rig.stages)
    waiting = "" if rig.waiting is None else dollars_text(rig.waiting)
    return (rig.rig, stages, hours_text(rig.hours), dollars_text(rig.dollars), waiting)
