"""A recipe with stages: each stage an ordinary run, the next one started only if the gates of the last held."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.recipe import Recipe, TrainingStage, UserError, stage_recipe
from windtunnel.run import GateResult, RunFolder, tell_gates

from .local import train_run, write_page
from .look_ahead import look_ahead
from .stage_runs import StageRun, awaits_evaluation, has_ended, held_run, judge, newest_of_job, none_of_job, position_of
from .supervisor import STOPPED
from .trainable import Options

if TYPE_CHECKING:
    from windtunnel.train import View

GATE_FAILED = 1


@dataclass(frozen=True)
class StageReport:
    """How a stage ended.

    Attributes:
        stage: its name. run: its folder. gates: what was asked for and what the run showed; None: the stage has no gates.
        next_stage: the stage that follows; None after the last, whose gates are only reported.
        goes_on: the stage that follows has begun already, and is to be gone on with.
    """

    stage: str
    run: Path
    gates: tuple[GateResult, ...] | None
    next_stage: str | None
    goes_on: bool = False

    @property
    def held(self) -> bool:
        """Return whether all gates did; without gates there is nothing to hold."""
        return all(gate.held for gate in self.gates or ())

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; keys are stable, and `gates` is null where the stage has none."""
        gates = None if self.gates is None else [gate.to_json() for gate in self.gates]
        return {"stage": self.stage, "run": str(self.run), "gates": gates, "held": self.held, "next": self.next_stage}


@dataclass(frozen=True)
class Position:
    """Where a job stands: the number of the stage to go on with, its run or None for a new one, and what came before."""

    number: int
    run: Path | None = None
    before: StageRun | None = None


def run_stages(
    recipe: Recipe,
    options: Options,
    views: Callable[[], View],
    report: Callable[[StageReport], None],
    *,
    stage: str | None = None,
    again: str = "windtunnel train RECIPE",
    as_json: bool = False,
) -> int:
    """Run the stages of a recipe one after the other, or one of them; return the exit code.

    A job that was stopped goes on where it stood with `options.resume`: in the stage that was running, or after the
    last one that ended; not if a stage before it does not hold by the gates that the recipe has now. Every stage trains in
    processes of its own.

    Args:
        recipe: with all its stages.
        options: how the command was called.
        views: makes the view of a run; each stage has its own.
        report: told the gates of a stage when it has ended.
        stage: run only this one, after a run of the stage before it whose gates held.
        again: the command line without --stage and --resume, for messages.
        as_json: the processes that train tell progress as JSON.

    Returns:
        0 done; 1 a run failed, or a gate did not hold and the stages after it were not started; 3 stopped by a signal or
        by the budget.

    Raises:
        UserError: no such stage; the gates of the stage before it did not hold; a stage that does not fit or cannot be paid.
    """
    # Every stage is a run of its own, so that a stopped job is found by its newest run alone.
    position = _position(recipe, options, stage, again)
    last = position.number if stage is not None else len(recipe.training) - 1
    if position.run is not None and not _still_held(recipe, position, views, report):
        return GATE_FAILED
    while True:
        here = recipe.training[position.number]
        if position.run is None or not _is_over(recipe, position.number, position.run, alone=stage is not None):
            code, folder = _train(recipe, here, position, last, options, views, as_json)
            if code != 0:
                _page(folder, views)
                return code
            position = replace(position, run=folder)
        assert position.run is not None
        held = _gates(recipe, position.number, position.run, report)
        _page(position.run, views)
        if position.number >= last:
            return 0 if held else GATE_FAILED
        if not held:
            return GATE_FAILED
        position = Position(position.number + 1, None, replace(position_of(position.run), before=position.before).with_spent())


def _is_over(recipe: Recipe, number: int, run: Path, *, alone: bool) -> bool:
    """Return whether a run needs no more training before what comes after it."""
    if number < len(recipe.training) - 1:
        return has_ended(recipe, run)
    # The last stage is asked again, for with a longer budget it goes on; unless its evaluation failed and is to be tried again.
    return not alone and awaits_evaluation(recipe, run)


def _position(recipe: Recipe, options: Options, stage: str | None, again: str) -> Position:
    names = [each.name for each in recipe.training]
    if stage is not None:
        stage_recipe(recipe, stage)  # refuses one that is not there
    if options.run is not None:
        found = position_of(options.run)
        if found.stage not in names or stage not in (None, found.stage):
            what = f"stage {found.stage}" if found.stage else "no stage"
            raise UserError(
                f"run {options.run} is of {what} of {found.recipe}", f"the stages of {recipe.name}: {', '.join(names)}"
            )
        RunFolder.open(options.run, stage_recipe(recipe, found.stage))  # refuses one of another recipe
        return Position(names.index(found.stage), options.run, found.before)
    if stage is not None:
        number = names.index(stage)
        own = newest_of_job(recipe, options.root, (stage,)) if options.resume else None
        if own is not None:
            return Position(number, own.path, own.before)
        return Position(number, None, held_run(recipe, number - 1, options.root, again) if number else None)
    if options.resume:
        newest = newest_of_job(recipe, options.root, names)
        if newest is None:
            raise none_of_job(recipe, options.root, again)
        return Position(names.index(newest.stage or ""), newest.path, newest.before)
    return Position(0)


def _train(
    recipe: Recipe,
    stage: TrainingStage,
    position: Position,
    last: int,
    options: Options,
    views: Callable[[], View],
    as_json: bool,
) -> tuple[int, Path]:
    with contextlib.closing(views()) as view:
        before = position.before
        taken, paid = (before.hours, before.dollars) if before is not None else (0.0, 0.0)
        own = stage_recipe(recipe, stage.name, hours=taken, dollars=paid)
        if before is not None:
            # A stage that begins with nothing left would build a model only to stop.
            gone = [name for name in ("dollars", "hours") if getattr(own.budget, name) == 0]
            if gone:
                view.say(f"budget.{gone[0]} is for all stages and is spent: stage {stage.name} does not begin")
                return STOPPED, before.path
        if position.run is None:
            look_ahead(recipe, range(position.number, last + 1), before, options, view.say)
        view.say(f"stage {stage.name} ({position.number + 1} of {len(recipe.training)})" + _described(stage))
        facts = None if before is None else {"run": before.path.name, "hours": before.hours, "dollars": before.dollars}
        mine = replace(options, run=position.run, resume=position.run is not None, job=recipe, before=facts)
        # Starting up is paid for by the stage that starts: the first one's began with the command.
        return train_run(own, mine, view, as_json=as_json, isolated=True, from_now=position.number > 0)


def _still_held(recipe: Recipe, position: Position, views: Callable[[], View], report: Callable[[StageReport], None]) -> bool:
    """Judge the runs of the stages before the one to go on with, the latest first, by the gates that the recipe has now."""
    before, number = position.before, position.number - 1
    while before is not None and number >= 0:
        # Deleted to save room: what its gates said then counts.
        if not before.path.exists():
            with contextlib.closing(views()) as view:
                name = recipe.training[number].name
                view.say(f"warn: {before.path} is gone: whether the gates of stage {name} hold cannot be judged again")
            return True
        judged = RunFolder.open(before.path).manifest.get("gates")
        held = _gates(recipe, number, before.path, report, goes_on=True)
        if RunFolder.open(before.path).manifest.get("gates") != judged:
            _page(before.path, views)
        if not held:
            return False
        before, number = position_of(before.path).before, number - 1
    return True


def _gates(recipe: Recipe, number: int, path: Path, report: Callable[[StageReport], None], *, goes_on: bool = False) -> bool:
    """Judge a run that has ended, write down the verdict and tell it; `goes_on` as in `StageReport`."""
    stage = recipe.training[number]
    following = recipe.training[number + 1].name if number + 1 < len(recipe.training) else None
    if stage.gates is None and following is None:
        return True
    results = None if stage.gates is None else judge(recipe, stage, path)
    told = StageReport(stage.name, path, results, following, goes_on)
    report(told)
    with RunFolder.open(path) as run:
        run.lock()
        run.update(gates=[result.to_json() for result in results or ()])
    tell_gates(path, recipe.notify, results or (), lambda text: print(text, file=sys.stderr))
    return told.held


def _page(folder: Path, views: Callable[[], View]) -> None:
    with contextlib.closing(views()) as view:
        write_page(folder, view.say)


def _described(stage: TrainingStage) -> str:
    return f": {stage.description}" if stage.description else ""
