"""The runs of a recipe's phases: which are there, how they ended, and whether their gates held."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from windtunnel.recipe import Phase, Recipe, UserError, phase_recipe
from windtunnel.run import (
    GateResult,
    MetricsReader,
    RunFolder,
    first_difference,
    gate_series,
    judge_gates,
    list_runs,
    load_spent,
)

LENGTHS = ("steps", "tokens", "epochs")


@dataclass(frozen=True)
class PhaseRun:
    """A run of a phase.

    Attributes:
        path: its folder. recipe: the recipe's name. phase: its name; None: the run is of no phase.
        ended: it reached its planned end. before: the run of the phase before it.
        hours, dollars: taken by it and all before it, once `with_spent`; else by nobody.
    """

    path: Path
    recipe: str
    phase: str | None
    ended: bool
    before: PhaseRun | None = None
    hours: float = 0.0
    dollars: float = 0.0

    def with_spent(self) -> PhaseRun:
        """With what it and all before it took."""
        spent = load_spent(self.path / "spent.json")
        hours, dollars = (self.before.hours, self.before.dollars) if self.before else (0.0, 0.0)
        return replace(self, hours=hours + spent.seconds / 3600, dollars=dollars + spent.dollars)


def position_of(path: Path) -> PhaseRun:
    """What a run's manifest tells.

    Raises:
        UserError: no run folder, or a damaged one.
    """
    if not path.exists():
        raise UserError(f"no run folder {path}", "leave --run out to start a new run")
    manifest = RunFolder.open(path).manifest
    told = manifest.get("before")
    before = None
    if told:
        other = path.parent / str(told["run"])
        before = PhaseRun(other, manifest["recipe"], None, True, None, float(told["hours"]), float(told["dollars"]))
    ended = manifest.get("status") == "done" and manifest.get("exit_code") == 0
    return PhaseRun(path, str(manifest.get("recipe")), manifest.get("phase"), ended, before)


def newest_of_job(recipe: Recipe, root: Path, phases: Sequence[str]) -> PhaseRun | None:
    """The newest run under the root of one of the phases, trained with this recipe, of whatever length."""
    for run in _runs(recipe, root):
        if run.phase in phases and _difference(recipe, run) is None:
            return run
    return None


def none_of_job(recipe: Recipe, root: Path, again: str) -> UserError:
    """That there is no run to go on with, and in what the newest of the recipe's name differs."""
    newest = next(_runs(recipe, root), None)
    other = f"; the newest, {newest.path}, is of another: {_difference(recipe, newest)}" if newest is not None else ""
    return UserError(f"no run of the phases of this recipe in {root}{other}", f"start one with: {again}")


def held_run(recipe: Recipe, number: int, root: Path, again: str) -> PhaseRun:
    """The newest run of a phase of this very recipe that ended and whose gates held, with what it took.

    Raises:
        UserError: there is none; says what is the matter with the newest, and the command that runs the phase.
    """
    phase = recipe.phases[number]
    reasons: list[str] = []
    for run in _runs(recipe, root):
        if run.phase != phase.name:
            continue
        why = _unusable(recipe, phase, run)
        if why is None:
            return run.with_spent()
        reasons.append(why)
    what = reasons[0] if reasons else f"there is no run of {phase.name} under {root}"
    asked = recipe.phases[number + 1].name
    raise UserError(
        f"phase {asked} needs a run of phase {phase.name} of the same recipe whose gates held: {what}",
        f"{again} --phase {phase.name}",
    )


def judge(recipe: Recipe, phase: Phase, run: Path) -> tuple[GateResult, ...]:
    """The gates of a phase on a run of it.

    Raises:
        UserError: the run's metrics cannot be read.
    """
    if phase.gates is None:
        return ()
    own = phase_recipe(recipe, phase.name)
    manifest = RunFolder.open(run).manifest
    with MetricsReader(run / "metrics.sqlite") as metrics:
        return judge_gates(phase.gates, own, gate_series(metrics, own), gpus=bool(manifest["rig"].get("gpu")))


def other_training(recipe: Recipe, run: PhaseRun) -> str | None:
    """The first key in which a run differs from what the recipe's phase would train now, with both values."""
    return _difference(recipe, run) or _other_length(recipe, run)


def has_ended(recipe: Recipe, path: Path) -> bool:
    """Whether a run came to its end, and that is where its phase ends now: one that is shorter is trained on."""
    run = position_of(path)
    return run.ended and _other_length(recipe, run) is None


def _difference(recipe: Recipe, run: PhaseRun) -> str | None:
    difference = first_difference(RunFolder.open(run.path).recipe, phase_recipe(recipe, run.phase or ""))
    return None if difference is None else _differs(*difference)


def _other_length(recipe: Recipe, run: PhaseRun) -> str | None:
    own, trained = phase_recipe(recipe, run.phase or ""), RunFolder.open(run.path).recipe
    lengths = ((f"budget.{name}", getattr(trained.budget, name), getattr(own.budget, name)) for name in LENGTHS)
    return next((_differs(*item) for item in lengths if item[1] != item[2]), None)


def _differs(key: str, there: object, here: object) -> str:
    return f"{key} is {there!r} there and {here!r} here"


def _unusable(recipe: Recipe, phase: Phase, run: PhaseRun) -> str | None:
    other = other_training(recipe, run)
    if other is not None:
        return f"{run.path} is of another recipe: {other}"
    if not run.ended:
        return f"{run.path} has not come to its end"
    failed = [gate for gate in judge(recipe, phase, run.path) if not gate.held]
    if failed:
        return f"in {run.path} " + "; ".join(f"{gate.name} was {gate.measured} ({gate.limit})" for gate in failed)
    return None


def _runs(recipe: Recipe, root: Path) -> Iterator[PhaseRun]:
    """The recipe's runs of phases that it has, newest first; damaged ones are left out."""
    names = {phase.name for phase in recipe.phases}
    for summary in list_runs(root):
        if summary.status != "damaged" and summary.recipe == recipe.name and summary.phase in names:
            yield position_of(summary.path)
