"""A job over several machines, reached by ssh: begun on the first that takes it, gone on with on another one when that is lost.

A machine is lost when a spot notice or signal ended the run there, when nobody trains it any more although it did not end, or
when it cannot be reached several times over. The next one brings the run from the job's mirror, whose lease decides: where the
other one still lives after all, only the way to it being cut, the next one is refused, and the first is asked again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.recipe import GateFailed, Recipe, UserError
from windtunnel.run import interrupted

from .host import Address
from .jobs import How, Say, launch_recipe, status

# One miss is a network that hiccups; a relaunch costs minutes and money.
MISSES = 3
"""So many looks in a row that do not reach a machine make it lost."""
MOST_WITHOUT_PROGRESS = 3
"""So many machines in a row that came to no later step end the job."""
ROUNDS_SECONDS = 12 * 3600.0
"""For so long a machine is looked for that takes the job."""


@dataclass(frozen=True)
class Kept:
    """How a job ended.

    Attributes:
        run: the address of its last run. status: as in `windtunnel runs`. reason: why it ended.
        moves: how often it went on elsewhere.
    """

    run: Address
    status: str
    reason: str | None
    moves: int

    @property
    def code(self) -> int:
        """The exit code."""
        # The codes of `windtunnel train` itself, so that a script need not know where it ran.
        return {"done": 0, "stopped": 3}.get(self.status, 1)


def relaunch(addresses: Sequence[Address], recipe: Recipe, how: How, say: Say) -> Address:
    """Launch a job on the first machine that takes it; returns the address of its run.

    Args:
        addresses: in order.
        recipe: with a mirror that is the job's alone: a run that is there is gone on with.
        how: with `--restartable` among its arguments.
        say: told why a machine does not take it.

    Raises:
        UserError: none of them does; says what was the matter with the last.
    """
    problem: UserError | None = None
    for address in addresses:
        try:
            return launch_recipe(address, recipe, how, say)
        except (UserError, GateFailed) as error:
            problem = error
            say(str(error))
    assert problem is not None
    raise problem


def keep(
    addresses: Sequence[Address], run: Address, recipe: Recipe, how: How, say: Say, *, period: float = 30.0,
    patience: float = ROUNDS_SECONDS,
) -> Kept:  # fmt: skip
    """Watch a job until it ends, and launch it again elsewhere whenever its machine is lost.

    Args:
        addresses: of all machines.
        run: as `relaunch` returned it.
        recipe: as for `relaunch`.
        how: as for `relaunch`.
        say: told how far it is.
        period: seconds between looks.
        patience: seconds for which a machine is looked for.

    Raises:
        UserError: no machine took the job for so long, or several in a row did not get further.
    """
    moves = idle = reached = 0
    while True:
        ended, step, why = _watch(run, recipe, say, period)
        if ended is not None:
            return Kept(run.of(Path(ended["path"]).name), ended["status"], ended["reason"], moves)
        say(f"{run}: {why}; it goes on elsewhere")
        # A machine that only trained again what was lost has got the job no further.
        idle = 0 if step > reached else idle + 1
        reached = max(step, reached)
        if idle >= MOST_WITHOUT_PROGRESS:
            raise UserError(f"{idle} machines in a row trained no further than step {reached:,}; the last: {why}", "see its log")
        run, moves = _elsewhere(addresses, run, recipe, how, say, period, patience), moves + 1


def _watch(run: Address, recipe: Recipe, say: Say, period: float) -> tuple[dict[str, Any] | None, int, str]:
    """Look at a run until it has ended or is lost; returns how it ended (None: lost), the last known step, and why it is lost."""
    misses, step, told, unheld = 0, 0, -1, 0
    while True:
        try:
            found = next((item for item in status(run.of(None)) if item["recipe"] == recipe.name), None)
        except UserError as error:
            misses, found = misses + 1, None
            if misses >= MISSES:
                return None, step, error.message
        else:
            misses = 0
            if found is None:
                return None, step, "the run is not there any more"
        if found is not None:
            step = max(step, found["step"] or 0)
            # Twice: between two processes of one job, as of two stages, nobody holds the run for a moment.
            unheld = unheld + 1 if found["lost"] else 0
            if unheld > 1 or (found["status"] == "stopped" and interrupted(found["reason"])):
                return None, step, found["reason"]
            if (not unheld and found["status"] not in ("running", "done")) or (
                found["status"] == "done" and _is_last(found, recipe)
            ):
                return found, step, ""
            if step != told:
                told = step
                dollars = "" if found["dollars"] is None else f", ${found['dollars']:,.2f}"
                say(f"{run}: step {step:,}{dollars}")
        time.sleep(period)


def find(addresses: Sequence[Address], recipe: Recipe, say: Say) -> Address | None:
    """Return the address of a recipe's run that is trained on one of the machines now; None: on none that can be reached."""
    for address in addresses:
        try:
            for item in status(address.of(None)):
                if item["recipe"] == recipe.name and item["status"] == "running":
                    return address.of(Path(item["path"]).name)
        except UserError as error:
            say(error.message)
    return None


def _elsewhere(
    addresses: Sequence[Address], run: Address, recipe: Recipe, how: How, say: Say, period: float, patience: float
) -> Address:  # fmt: skip
    """Launch the job on the machine after the lost one, or a later one, or on that again; waits where none takes it."""
    places = [(each.target, each.port) for each in addresses]
    first = places.index((run.target, run.port)) + 1
    # The lost one last: it may be back, but others are there now.
    order = [*addresses[first:], *addresses[:first]]
    limit = time.monotonic() + patience
    while True:
        try:
            return relaunch(order, recipe, how, say)
        except UserError as error:
            if time.monotonic() > limit:
                raise
            say(f"no machine takes the job now ({error.message}); tried again in {max(period, 1.0):.0f} s")
        time.sleep(max(period, 1.0))


def _is_last(found: dict[str, Any], recipe: Recipe) -> bool:
    """Return whether nothing follows a run that is done: no later stage, or its gates did not hold."""
    if found["stage"] in (None, recipe.training[-1].name):
        return True
    return any(held is False for held in (found["gates"] or {}).values())
