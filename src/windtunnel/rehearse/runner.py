"""Run checks in order: a failed one stops only those that need it."""

from __future__ import annotations

import difflib
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from windtunnel.check import Check, CheckView, Outcome, attempt, failed, not_run
from windtunnel.recipe import UserError

from .nursery import Nursery


class Silent:
    """Shows nothing."""

    def begin(self, check: Check) -> None:
        """Show nothing."""

    def detail(self, text: str) -> None:
        """Show nothing."""

    def end(self, outcome: Outcome) -> None:
        """Show nothing."""


def run_checks(checks: Sequence[Check], context: Any, view: CheckView | None = None, *, isolate: bool = True) -> list[Outcome]:
    """Run the checks that apply, in order; what they find is left in `context.facts` for the later ones.

    Args:
        checks: those that a check needs come before it.
        context: a Context, or what else the checks' `run` takes; its `folder` gets the logs.
        view: shows progress; None: nothing is shown.
        isolate: False runs all in this process, for tests: a crash or hang is then the caller's own.
    """
    view = view or Silent()
    outcomes: list[Outcome] = []
    blocked: set[str] = set()
    with ExitStack() as stack:
        nursery = stack.enter_context(Nursery()) if isolate else None
        for check in checks:
            broken = _applies(check, context)
            if broken is False:
                continue
            view.begin(check)
            causes = tuple(name for name in check.needs if name in blocked)
            log = Path(context.folder) / f"{check.name.replace(' ', '-')}.log"
            if causes:
                outcome = not_run(check, context, causes)
            elif isinstance(broken, str):
                outcome = failed(check, context, time.monotonic(), broken)
            elif check.apart and nursery is not None:
                outcome = nursery.run(check, context, view.detail, log)
            else:
                outcome = attempt(check, context, view.detail, log)
            if outcome.blocks:
                blocked.add(check.name)
            # Only of what was seen: a later check must not plan with numbers of a failed one.
            elif outcome.status in ("ok", "warn"):
                context.facts[check.name] = outcome.facts
            outcomes.append(outcome)
            view.end(outcome)
    return outcomes


def select(checks: Sequence[Check], names: Sequence[str]) -> list[Check]:
    """Return the named checks and what they need, in their order.

    Raises:
        UserError: there is none of that name; names the nearest.
    """
    known = {check.name: check for check in checks}
    wanted: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            raise UserError(
                f"no check named {name!r}",
                f"did you mean {nearest[0]}? windtunnel check --list names all" if nearest else f"one of: {', '.join(known)}",
            )
        if name not in wanted:
            wanted.add(name)
            # A check that needs a stage of a rehearsal is run without it.
            waiting += [need for need in known[name].needs if need in known]
    return [check for check in checks if check.name in wanted]


def _applies(check: Check, context: Any) -> bool | str:
    """Return whether it applies; text where that cannot be told because of a bug in a check."""
    try:
        return bool(check.applies(context))
    except UserError:
        return True  # a recipe that cannot be read: the check of the recipe says it, and this one needs that
    except Exception as error:
        return f"{type(error).__name__}: {error}"
