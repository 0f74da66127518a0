"""Answers of actors: every wait has a name and a limit, and ends in an error that says both."""

from __future__ import annotations

import contextlib
import re
from typing import Any

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_DIED = ("The actor died", "The actor is dead", "Owner")
_RAISED = re.compile(r"[\w.]*[A-Za-z]\w*: (?P<what>.+)")
"""The last line of a traceback, which alone of its lines is not indented."""


class NoAnswer(Exception):
    """An actor gave no answer within the limit; the message names it and what it was asked for."""


class ActorLost(Exception):
    """An actor's process, or its node, is gone; the message names it and what it was asked for."""


def answer_of(reference: Any, what: str, seconds: float) -> Any:
    """Return an actor's answer.

    Args:
        reference: of a call.
        what: who was asked for what, for messages.
        seconds: that it may take.

    Raises:
        NoAnswer, ActorLost: there is none. What the actor raised is raised as it is.
    """
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError, WorkerCrashedError

    try:
        return ray.get(reference, timeout=seconds)
    except GetTimeoutError:
        raise NoAnswer(f"{what}: no answer within {seconds:.4g} s") from None
    except (RayActorError, WorkerCrashedError) as error:
        raise ActorLost(f"{what}: {_first_line(error)}") from None
    # Callers act on the kind of an error; Ray wraps it in one of its own that is a subclass, with the far traceback.
    except RayTaskError as error:
        raise error.cause if isinstance(getattr(error, "cause", None), Exception) else error from None


def release(actor: Any) -> None:
    """End an actor, whatever it is at."""
    import ray

    with contextlib.suppress(Exception):
        ray.kill(actor, no_restart=True)


def _first_line(error: BaseException) -> str:
    """Return what an actor died of: what its constructor raised, or the line of Ray's that says how it ended."""
    # Ray's messages are pages long, in colours, and begin with the address of the process.
    lines = [line.rstrip() for line in _COLOUR.sub("", str(error)).splitlines() if line.strip()]
    died = next((line.strip() for line in lines if line.strip().startswith(_DIED)), lines[0].strip() if lines else "")
    raised = [found for line in lines if (found := _RAISED.match(line))]
    if "creation task" in died and raised:
        return f"it does not start: {raised[-1]['what'][:1000]}"
    return died[:300] or type(error).__name__
