"""What follows an attempt: nothing, since the run has ended; another one; or an end with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from windtunnel.run import interrupted

from .job import Attempt

# One may be bad luck; the second in a row that saves nothing would go on for ever.
MOST_WITHOUT_PROGRESS = 2
"""So many attempts in a row that saved no later step end the chain."""
MOST_WITHOUT_TRAINING = 5
"""So many attempts in a row that found bad nodes end the chain."""


@dataclass(frozen=True)
class Move:
    """What follows. Attributes: kind: again, done, stopped or failed. why: in words."""

    kind: Literal["again", "done", "stopped", "failed"]
    why: str


def next_move(attempts: Sequence[Attempt], stop: str | None = None) -> Move:
    """Return what follows the last attempt.

    Args:
        attempts: all of the job's, the last one ended.
        stop: who asked the job to stop, or None.
    """
    last = attempts[-1]
    ended = _of_itself(last, stop)
    if ended is not None:
        return ended
    if last.bad:
        return _after_bad_nodes(attempts)
    why = _why(last)
    idle = 0
    # Attempts with bad nodes trained nothing, and are counted by themselves.
    for attempt in reversed([attempt for attempt in attempts if not attempt.bad]):
        if attempt.moved:
            break
        idle += 1
    if idle >= MOST_WITHOUT_PROGRESS:
        return Move("failed", f"{idle} attempts in a row saved no later step; the last: {why}")
    return Move("again", why)


def _of_itself(last: Attempt, stop: str | None) -> Move | None:
    """Return the end of a chain that has come to one; None where the attempt was cut short."""
    if last.code == 0:
        return Move("done", last.reason or "the recipe has run")
    if stop is not None:
        return Move("stopped", stop)
    # Beside bad nodes no training was begun, so that the code says nothing of the run. Code 1 without a run that is done is a
    # crash, which another attempt may outlive.
    found: Move | None = None
    if not last.bad and last.code == 2:
        found = Move("failed", last.reason or "bad input: output.log says which")
    elif not last.bad and last.code == 1 and last.status == "done":
        found = Move("failed", last.reason or "a gate did not hold")
    elif not last.bad and last.code == 3 and not _signalled(last):
        found = Move("stopped", last.reason or "the budget is used up")
    return found


def _after_bad_nodes(attempts: Sequence[Attempt]) -> Move:
    count = 0
    for attempt in reversed(attempts):
        if not attempt.bad:
            break
        count += 1
    told = "; ".join(f"{node}: {why}" for node, why in attempts[-1].bad.items())
    if count >= MOST_WITHOUT_TRAINING:
        return Move("failed", f"{count} attempts in a row found bad nodes; the last: {told}")
    return Move("again", f"without {', '.join(attempts[-1].bad)}: {told}")


def _signalled(attempt: Attempt) -> bool:
    """Whether the run ended for a signal or a notice, and not for its budget or for somebody's wish."""
    return attempt.signal is not None or interrupted(attempt.reason)


def _why(attempt: Attempt) -> str:
    if attempt.code is None:
        return f"the attempt was lost while {attempt.phase}: a node failed, or Slurm ended it without a word"
    if attempt.code == 3:
        return "the time limit was near" if attempt.signal == "SIGUSR1" else f"ended by {attempt.signal or attempt.reason}"
    return attempt.reason or f"`windtunnel train` ended with exit code {attempt.code}"
