"""The runs of a recipe's stages: which are there, how they ended, and whether their gates held."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from windtunnel.recipe import Recipe, TrainingStage, UserError, stage_recipe
from windtunnel.run import EVALUATION, GateResult, MetricsReader, RunFolder, first_difference, list_runs, load_spent
from windtunnel.train import gate_series, judge_gates

LENGTHS = ("steps", "tokens", "epochs")


@dataclass(frozen=True)
class StageRun:
    """A run of a stage.

    Attributes:
        path: its folder. recipe: the recipe's name. stage: its name; None: the run is of no stage.
        ended: it reached its planned end. before: the run of the stage before it.
        hours, dollars: taken by it and all before it, once `with_spent`; else by nobody.
    """

    path: Path
    recipe: str
    stage: str | None
    ended: bool
    before: StageRun | None = None
    hours: float = 0.0
    dollars: float = 0.0

    def with_spent(self) -> StageRun:
        """Return the same with the hours and dollars that it and all before it took."""
        spent = load_spent(self.path / "spent.json")
        hours, dollars = (self.before.hours, self.before.dollars) if self.before else (0.0, 0.0)
        return replace(self, hours=hours + spent.seconds / 3600, dollars=dollars + spent.dollars)


def position_of(path: Path) -> StageRun:
    """Return where a run stands by its manifest: of which stage it is, whether it ended, and what came before it.

    Raises:
        UserError: no run folder, or a damaged one.
    """
    if not path.exists():
        raise UserError(f"no run folder {path}", "leave --run out to start a new run")
    manifest = RunFolder.open(path).manifest
    # What the runs before it took stands in its own manifest: their folders may be gone by now.
    told = manifest.get("before")
    before = None
    if told:
        other = path.parent / str(told["run"])
        before = StageRun(other, manifest["recipe"], None, True, None, float(told["hours"]), float(told["dollars"]))
    ended = manifest.get("status") == "done" and manifest.get("exit_code") == 0
    return StageRun(path, str(manifest.get("recipe")), manifest.get("stage"), ended, before)


def newest_of_job(recipe: Recipe, root: Path, stages: Sequence[str]) -> StageRun | None:
    """Return the newest run under the root of one of the stages, trained with this recipe, of whatever length."""
    for run in _runs(recipe, root):
        if run.stage in stages and _difference(recipe, run) is None:
            return run
    return None


def none_of_job(recipe: Recipe, root: Path, again: str) -> UserError:
    """Return the refusal where there is no run to go on with; it says in what the newest of the recipe's name differs."""
    newest = next(_runs(recipe, root), None)
    other = f"; the newest, {newest.path}, is of another: {_difference(recipe, newest)}" if newest is not None else ""
    return UserError(f"no run of the stages of this recipe in {root}{other}", f"start one with: {again}")


def held_run(recipe: Recipe, number: int, root: Path, again: str) -> StageRun:
    """Return the newest run of a stage of this very recipe that ended and whose gates held, with what it took.

    Raises:
        UserError: there is none; says what is the matter with the newest, and the command that runs the stage.
    """
    stage = recipe.training[number]
    reasons: list[str] = []
    for run in _runs(recipe, root):
        if run.stage != stage.name:
            continue
        why = _unusable(recipe, stage, run)
        if why is None:
            return run.with_spent()
        # Of several runs the newest is the one that the user has in mind.
        reasons.append(why)
    what = reasons[0] if reasons else f"there is no run of {stage.name} under {root}"
    asked = recipe.training[number + 1].name
    raise UserError(
        f"stage {asked} needs a run of stage {stage.name} of the same recipe whose gates held: {what}",
        f"{again} --stage {stage.name}",
    )


def judge(recipe: Recipe, stage: TrainingStage, run: Path) -> tuple[GateResult, ...]:
    """Judge the gates of a stage on a run of it; none where it has none.

    Raises:
        UserError: the run's metrics cannot be read.
    """
    if stage.gates is None:
        return ()
    # By the gates that the recipe has now: whoever loosened one does not want to train again.
    own = stage_recipe(recipe, stage.name)
    manifest = RunFolder.open(run).manifest
    with MetricsReader(run / "metrics.sqlite") as metrics:
        return judge_gates(stage.gates, own, gate_series(metrics, own), gpus=bool(manifest["rig"].get("gpu")))


def other_training(recipe: Recipe, run: StageRun) -> str | None:
    """Return the first key in which a run differs from what its stage would train now, with both values; None: in none."""
    return _difference(recipe, run) or _other_length(recipe, run)


def has_ended(recipe: Recipe, path: Path) -> bool:
    """Return whether a run came to its end, and that is where its stage ends now: one that is shorter is trained on."""
    run = position_of(path)
    return run.ended and _other_length(recipe, run) is None


def awaits_evaluation(recipe: Recipe, path: Path) -> bool:
    """Return whether a run came to its end by the budget of now, and what the recipe's last gates judge is not measured."""
    if recipe.evaluation.gates is None or (path / EVALUATION).exists() or not has_ended(recipe, path):
        return False
    run = position_of(path)
    taken, paid = (run.before.hours, run.before.dollars) if run.before is not None else (0.0, 0.0)
    own, trained = stage_recipe(recipe, run.stage or "", hours=taken, dollars=paid), RunFolder.open(path).recipe
    return all(getattr(own.budget, name) == getattr(trained.budget, name) for name in ("hours", "dollars"))


def _difference(recipe: Recipe, run: StageRun) -> str | None:
    difference = first_difference(RunFolder.open(run.path).recipe, stage_recipe(recipe, run.stage or ""))
    return None if difference is None else _differs(*difference)


def _other_length(recipe: Recipe, run: StageRun) -> str | None:
    own, trained = stage_recipe(recipe, run.stage or ""), RunFolder.open(run.path).recipe
    # Lengths alone: dollars and hours are spent over all stages and differ from run to run.
    lengths = ((f"budget.{name}", getattr(trained.budget, name), getattr(own.budget, name)) for name in LENGTHS)
    return next((_differs(*item) for item in lengths if item[1] != item[2]), None)


def _differs(key: str, there: object, here: object) -> str:
    return f"{key} is {there!r} there and {here!r} here"


def _unusable(recipe: Recipe, stage: TrainingStage, run: StageRun) -> str | None:
    # From what is cheap to see to what takes reading all metrics.
    other = other_training(recipe, run)
    if other is not None:
        return f"{run.path} is of another recipe: {other}"
    if not run.ended:
        return f"{run.path} has not come to its end"
    failed = [gate for gate in judge(recipe, stage, run.path) if not gate.held]
    if failed:
        return f"in {run.path} " + "; ".join(f"{gate.name} was {gate.measured} ({gate.limit})" for gate in failed)
    return None


def _runs(recipe: Recipe, root: Path) -> Iterator[StageRun]:
    """Yield the recipe's runs of stages that it has, newest first; damaged ones are left out."""
    # The recipe may have lost a stage, or another recipe may have its name.
    names = {stage.name for stage in recipe.training}
    for summary in list_runs(root):
        if summary.status != "damaged" and summary.recipe == recipe.name and summary.stage in names:
            yield position_of(summary.path)
