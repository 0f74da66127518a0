"""The nearest plans that work for a recipe that does not fit its rig, and the largest stand-ins for its model there.

A planner names changes of the recipe (see plan.StagePlanner); each is tried here before it is offered: on the same rig, on
more GPUs of its kind, on other GPUs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from windtunnel.recipe import OWN_ENGINE, HuggingFaceModel, Layout, Recipe, UserError, validate
from windtunnel.rig import Rig, load_catalog, parse_rig

from .types import Alternative, Plan

if TYPE_CHECKING:
    from .plan import Draft, StagePlanner

NODES = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96, 128)
MOST = 6
OTHERS = 2
# In the words of such a change: it comes last.
UNTRAINED = "which this package plans and does not train"


@dataclass(frozen=True)
class Change:
    """Keys of the recipe to set, and what that means in words; `otherwise`: keys to set instead where only they help."""

    sets: tuple[str, ...]
    what: str
    otherwise: tuple[str, ...] | None = None

    @property
    def options(self) -> str:
        """As the command line takes it."""
        return " ".join(f"--set {text}" for text in self.sets)


AS_IT_IS = Change((), "")


@dataclass(frozen=True)
class StandIn:
    """What to put in the model's place on one rig: how to say it on the command line, in words, and its plan there."""

    change: str
    what: str
    plan: Plan

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON; keys are stable."""
        return {
            "change": self.change,
            "what": self.what,
            "params": self.plan.params,
            "peak_gib": self.plan.peak_gib,
            "limit_gib": self.plan.limit_gib,
        }


def alternatives(recipe: Recipe, rig: Rig, planner: StagePlanner) -> list[Alternative]:
    """Return what would fit, the smallest change first: recipe keys on the same rig, more GPUs of its kind, other GPUs.

    Behind all others comes what another program would have to train.
    """
    found, nearby = [], _Nearby(recipe, planner)
    for group in planner.changes(recipe, rig):
        tried = (nearby.option(rig, change, elsewhere=False) for change in group)
        found += [option for option in (next((t for t in tried if t), None),) if option]
    changes = list(planner.elsewhere(recipe))
    for change in changes:
        # What fits here already needs no more GPUs, nor do methods that need still less.
        if len(found) >= MOST or (change.what and any(f"--set {change.sets[-1]}" in option.change for option in found)):
            break
        more = (other for other in rigs_of_kind(rig) if other.gpus > rig.gpus)
        option = next((option for other in more if (option := nearby.option(other, change))), None)
        if option:
            found.append(option)
    found += _other_gpus(rig, nearby, changes)[:OTHERS]
    distinct = {option.change: option for option in found}.values()
    return sorted(distinct, key=lambda option: UNTRAINED in option.why)


def stand_ins(recipe: Recipe, rig: Rig) -> tuple[StandIn, ...]:
    """Return the same model trained more cheaply, and the largest smaller one trained the same way; those of them that fit."""
    from .plan import make_plan, planner_of

    found, planner = [], planner_of(recipe)
    for group in planner.stand_ins(recipe, rig):
        for change in group:
            try:
                new = changed(recipe, change.sets)
                if planner.hopeless(new)(rig):
                    continue
                plan = make_plan(new, rig, suggest=False)
            except UserError:
                continue  # not on this hardware
            if holds(plan):
                found.append(StandIn(change.options, change.what, plan))
                break
    return tuple(found)


def holds(plan: Plan) -> bool:
    """Whether the model fits a rig's memory, whatever the budget and the disk say about the whole run."""
    return plan.peak_gib <= plan.limit_gib and all(role.peak_gib <= role.limit_gib for role in plan.roles.values())


def changed(recipe: Recipe, sets: tuple[str, ...]) -> Recipe:
    """Return the recipe with keys set, as `--set` does: under `stages` a kind stands for the stage of that kind."""
    if not sets:
        return recipe
    # What earlier stages left of the budget may be nothing, which no recipe may ask for.
    data = recipe.model_dump(mode="json") | {"budget": {}}
    names = {stage.kind: stage.name for stage in recipe.training}
    for text in sets:
        key, _, value = text.partition("=")
        here = data
        *sections, last = key.split(".")
        if key.startswith("stages."):
            sections[1] = names.get(sections[1], sections[1])
        for section in sections:
            here[section] = dict(here.get(section) or {})
            here = here[section]
        here[last] = {"null": None, "true": True, "false": False}.get(value, int(value) if value.isdigit() else value)
    return validate(data, "--set").model_copy(update={"budget": recipe.budget})


def rig_name(gpu: str, nodes: int, count: int) -> str:
    """Name a rig as `--on` takes it."""
    one = f"{count}x{gpu}" if count > 1 else gpu
    return f"{nodes}x({one})" if nodes > 1 else one


def rigs_of_kind(rig: Rig) -> Iterator[Rig]:
    """Yield rigs of this kind of GPU, the fewest first: parts of a node, then nodes."""
    if rig.gpu is None:
        return
    gpus = load_catalog().gpus
    most = rig.gpus_per_node if rig.nodes > 1 else gpus[rig.gpu.name].max_per_node if rig.gpu.name in gpus else 8
    for nodes, count in [(1, n) for n in (1, 2, 4, 8) if n <= most] + [(nodes, most) for nodes in NODES]:
        network = rig.network_gbs / max(1, rig.gpus_per_node) * count
        if rig.nodes == 1 and rig.gpu.name in gpus:
            network = gpus[rig.gpu.name].network_gbs * count
        yield replace(rig, gpus_per_node=count, nodes=nodes, network_gbs=network, name=rig_name(rig.gpu.name, nodes, count))


def _other_gpus(rig: Rig, nearby: _Nearby, changes: Sequence[Change]) -> list[Alternative]:
    """Return other kinds of GPU, as many as now or the fewest that do: the smallest change of the recipe first."""
    catalog = load_catalog()
    found: list[tuple[int, float, Alternative]] = []
    for name, entry in catalog.gpus.items():
        if rig.gpu is not None and name == rig.gpu.name:
            continue
        now = min(max(1, rig.gpus_per_node), entry.max_per_node)
        counts = sorted({now, entry.max_per_node, *(n for n in (2, 4, 8) if now < n < entry.max_per_node)})
        # The recipe as it is on eight of them comes before one that is changed on four.
        for index, count in itertools.product(range(len(changes)), counts):
            other = parse_rig(rig_name(name, 1, count))
            option = nearby.option(other, changes[index])
            if option:
                found.append((index, other.dollars_per_hour or math.inf, option))
                break
    return [option for _, _, option in sorted(found, key=lambda item: item[:2])]


def _nobody_trains(recipe: Recipe, layout: Layout) -> bool:
    """Return whether a plan is neither for this package's own engine nor handed over: of adapters no job is written."""
    adapter = isinstance(recipe.model, HuggingFaceModel) and recipe.model.adapter is not None
    return adapter and recipe.rl is None and layout.engine != OWN_ENGINE


def cheapest(options: Iterable[set[str]]) -> str | None:
    """Return the cheapest of the rigs that every one of the sets names; None where there is none."""
    sets = list(options)
    shared = set.intersection(*sets) if sets else set()
    return min(shared, key=lambda name: (parse_rig(name).dollars_per_hour or math.inf, name), default=None)


class _Nearby:
    """Plans of one recipe under changes of its keys, on this rig and others."""

    def __init__(self, recipe: Recipe, planner: StagePlanner) -> None:
        self.recipe, self.planner = recipe, planner
        self.recipes: dict[tuple[str, ...], tuple[Recipe, Callable[[Rig], bool]] | None] = {}

    def option(self, rig: Rig, change: Change, elsewhere: bool = True) -> Alternative | None:
        """Return the alternative, if it fits; on the same rig with what budget and disk need beside it."""
        from .plan import afford

        for sets in (change.sets, change.otherwise):
            tried = None if sets is None else self._draft(rig, sets)
            if sets is None or tried is None or tried[1].reasons:
                continue
            new, draft = tried
            best = draft.best
            # Of another rig neither price nor disk is known here.
            helps = [] if elsewhere else afford(new, rig, draft)[3]
            where = [f"--rig '{rig.name}'" if "(" in rig.name else f"--rig {rig.name}"] if elsewhere else []
            said = change.what
            if _nobody_trains(new, best.layout) and UNTRAINED not in said:
                said = f"{said}, {UNTRAINED}" if said else f"a layout {UNTRAINED}"
            what = "".join(f"{text}: " for text in (said, *(help.why for help in helps)) if text)
            why = f"{what}{best.peak_gib:.1f} of {best.limit_gib:.1f} GiB a rank; {draft.shared}{best.layout.describe()}"
            return Alternative(" ".join([*(f"--set {text}" for text in sets), *(help.change for help in helps), *where]), why)
        return None

    def _draft(self, rig: Rig, sets: tuple[str, ...]) -> tuple[Recipe, Draft] | None:
        """Return the changed recipe and its draft; None where it means nothing, or is known at once not to fit."""
        from .plan import Case

        try:
            known = self._changed(sets)
            if known is None or known[1](rig):
                return None
            return known[0], self.planner.draft(Case(known[0], rig))
        except UserError:
            return None

    def _changed(self, sets: tuple[str, ...]) -> tuple[Recipe, Callable[[Rig], bool]] | None:
        """Return the changed recipe and what tells where it cannot fit; None where no recipe may be so."""
        if sets not in self.recipes:
            try:
                new = changed(self.recipe, sets)
                self.recipes[sets] = new, self.planner.hopeless(new)
            except UserError:
                self.recipes[sets] = None
        return self.recipes[sets]
