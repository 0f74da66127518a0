"""A recipe with phases: each phase an ordinary run, the next one started only if the gates of the last held."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from windtunnel.plan import with_rest
from windtunnel.recipe import Phase, Recipe, UserError, phase_recipe
from windtunnel.run import GateResult, RunFolder

from .local import View, train_run, write_page
from .look_ahead import Ahead, look_ahead
from .phase_runs import PhaseRun, has_ended, held_run, judge, newest_of_job, none_of_job, position_of
from .prepare import Options

STOPPED = 3
GATE_FAILED = 1


@dataclass(frozen=True)
class PhaseReport:
    """How a phase ended.

    Attributes:
        phase: its name. run: its folder. gates: what was asked for and what the run showed; None: the phase has no gates.
        next_phase: the phase that follows; None after the last, whose gates are only reported.
        goes_on: the phase that follows has begun already, and is to be gone on with.
    """

    phase: str
    run: Path
    gates: tuple[GateResult, ...] | None
    next_phase: str | None
    goes_on: bool = False

    @property
    def held(self) -> bool:
        """Whether all gates did; without gates there is nothing to hold."""
        return all(gate.held for gate in self.gates or ())

    def to_json(self) -> dict[str, Any]:
        """Stable keys; `gates` is null where the phase has none."""
        gates = None if self.gates is None else [gate.to_json() for gate in self.gates]
        return {"phase": self.phase, "run": str(self.run), "gates": gates, "held": self.held, "next": self.next_phase}


@dataclass(frozen=True)
class Position:
    """Where a job stands: the number of the phase to go on with, its run or None for a new one, and what came before."""

    number: int
    run: Path | None = None
    before: PhaseRun | None = None


def run_phases(
    recipe: Recipe,
    options: Options,
    views: Callable[[], View],
    report: Callable[[PhaseReport], None],
    *,
    phase: str | None = None,
    again: str = "windtunnel train RECIPE",
    as_json: bool = False,
) -> int:
    """Run the phases of a recipe one after the other, or one of them; returns the exit code.

    A job that was stopped goes on where it stood with `options.resume`: in the phase that was running, or after the
    last one that ended; not if a phase before it does not hold by the gates that the recipe has now. Every phase trains in
    processes of its own.

    Args:
        views: makes the view of a run; each phase has its own.
        report: told the gates of a phase when it has ended.
        phase: run only this one, after a run of the phase before it whose gates held.
        again: the command line without --phase and --resume, for messages.

    Returns:
        0 done; 1 a run failed, or a gate did not hold and the phases after it were not started; 3 stopped by a signal or
        by the budget.

    Raises:
        UserError: no such phase; the gates of the phase before it did not hold; a phase that does not fit or cannot be paid.
    """
    position = _position(recipe, options, phase, again)
    last = position.number if phase is not None else len(recipe.phases) - 1
    if position.run is not None and not _still_held(recipe, position, views, report):
        return GATE_FAILED
    while True:
        here = recipe.phases[position.number]
        ended = position.run is not None and position.number < len(recipe.phases) - 1 and has_ended(recipe, position.run)
        if not ended:
            code, folder = _train(recipe, here, position, last, options, views, as_json)
            if code != 0:
                _page(folder, views)
                return code
            position = replace(position, run=folder)
        assert position.run is not None
        held = _gates(recipe, position.number, position.run, report)
        _page(position.run, views)
        if position.number >= last:
            return 0 if held or here is recipe.phases[-1] else GATE_FAILED
        if not held:
            return GATE_FAILED
        position = Position(position.number + 1, None, replace(position_of(position.run), before=position.before).with_spent())


def _position(recipe: Recipe, options: Options, phase: str | None, again: str) -> Position:
    names = [each.name for each in recipe.phases]
    if phase is not None:
        phase_recipe(recipe, phase)  # refuses one that is not there
    if options.run is not None:
        found = position_of(options.run)
        if found.phase not in names or phase not in (None, found.phase):
            what = f"phase {found.phase}" if found.phase else "no phase"
            raise UserError(
                f"run {options.run} is of {what} of {found.recipe}", f"the phases of {recipe.name}: {', '.join(names)}"
            )
        RunFolder.open(options.run, phase_recipe(recipe, found.phase))  # refuses one of another recipe
        return Position(names.index(found.phase), options.run, found.before)
    if phase is not None:
        number = names.index(phase)
        own = newest_of_job(recipe, options.root, (phase,)) if options.resume else None
        if own is not None:
            return Position(number, own.path, own.before)
        return Position(number, None, held_run(recipe, number - 1, options.root, again) if number else None)
    if options.resume:
        newest = newest_of_job(recipe, options.root, names)
        if newest is None:
            raise none_of_job(recipe, options.root, again)
        return Position(names.index(newest.phase or ""), newest.path, newest.before)
    return Position(0)


def _train(
    recipe: Recipe, phase: Phase, position: Position, last: int, options: Options, views: Callable[[], View], as_json: bool
) -> tuple[int, Path]:
    with contextlib.closing(views()) as view:
        own, before = phase_recipe(recipe, phase.name), position.before
        if before is not None:
            own = with_rest(own, hours=before.hours, dollars=before.dollars)
            gone = [name for name in ("dollars", "hours") if getattr(own.budget, name) == 0]
            if gone:
                view.say(f"budget.{gone[0]} is for all phases and is spent: phase {phase.name} does not begin")
                return STOPPED, before.path
        if position.run is None:
            look_ahead(recipe, Ahead(position.number, last, before), options, view.say)
        view.say(f"phase {phase.name} ({position.number + 1} of {len(recipe.phases)})" + _described(phase))
        facts = None if before is None else {"run": before.path.name, "hours": before.hours, "dollars": before.dollars}
        mine = replace(options, run=position.run, resume=position.run is not None, before=facts)
        # Starting up is paid for by the phase that starts: the first one's began with the command.
        return train_run(own, mine, view, as_json=as_json, isolated=True, from_now=position.number > 0)


def _still_held(recipe: Recipe, position: Position, views: Callable[[], View], report: Callable[[PhaseReport], None]) -> bool:
    """Judge the runs of the phases before the one to go on with, the latest first, by the gates that the recipe has now."""
    before, number = position.before, position.number - 1
    while before is not None and number >= 0:
        if not before.path.exists():
            with contextlib.closing(views()) as view:
                name = recipe.phases[number].name
                view.say(f"warn: {before.path} is gone: whether the gates of phase {name} hold cannot be judged again")
            return True
        judged = RunFolder.open(before.path).manifest.get("gates")
        held = _gates(recipe, number, before.path, report, goes_on=True)
        if RunFolder.open(before.path).manifest.get("gates") != judged:
            _page(before.path, views)
        if not held:
            return False
        before, number = position_of(before.path).before, number - 1
    return True


def _gates(recipe: Recipe, number: int, path: Path, report: Callable[[PhaseReport], None], *, goes_on: bool = False) -> bool:
    """Judge a run that has ended, write down the verdict and tell it; `goes_on` as in `PhaseReport`."""
    phase = recipe.phases[number]
    following = recipe.phases[number + 1].name if number + 1 < len(recipe.phases) else None
    if phase.gates is None and following is None:
        return True
    results = None if phase.gates is None else judge(recipe, phase, path)
    told = PhaseReport(phase.name, path, results, following, goes_on)
    report(told)
    with RunFolder.open(path) as run:
        run.lock()
        run.update(gates=[result.to_json() for result in results or ()])
    return told.held


def _page(folder: Path, views: Callable[[], View]) -> None:
    with contextlib.closing(views()) as view:
        write_page(folder, view.say)


def _described(phase: Phase) -> str:
    return f": {phase.description}" if phase.description else ""
