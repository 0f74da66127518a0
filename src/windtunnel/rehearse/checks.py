"""Checks in order: each is timed, a failed one stops only those that need it, and nothing is raised but an interrupt."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from windtunnel.recipe import UserError

Status = Literal["ok", "warn", "fail", "skip"]
Moment = Literal["start", "first steps", "first interruption", "end"]
"""When a failure would show on the target rig; `windtunnel.rehearse.late` puts a price on each."""
Say = Callable[[str], None]


class CheckFailed(Exception):
    """What should hold does not.

    Args:
        evidence: what was seen instead.
        remedy: what to do; None: the check's own.
        blocks: whether the checks that need this one make no sense now.
    """

    def __init__(self, evidence: str, remedy: str | None = None, *, blocks: bool = True) -> None:
        super().__init__(evidence)
        self.evidence, self.remedy, self.blocks = evidence, remedy, blocks


@dataclass(frozen=True)
class Evidence:
    """What a check saw. `warning`: it holds, but; `absent`: this machine cannot tell, and what can."""

    text: str
    numbers: dict[str, Any] = field(default_factory=dict)
    warning: str | None = None
    absent: str | None = None


@dataclass(frozen=True)
class Check:
    """One thing to be proven.

    Attributes:
        proves: what holds when it passes. remedy: what to do when it does not.
        shows: when the same failure would show on the target rig.
        run: told where to report what it is doing. needs: names of checks whose failure makes it pointless.
    """

    name: str
    proves: str
    remedy: str
    shows: Moment
    run: Callable[[Say], Evidence]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """A check and what came of it. `remedy` is empty for what passed."""

    check: str
    proves: str
    status: Status
    evidence: str
    seconds: float
    shows: Moment
    remedy: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)
    blocks: bool = False


class View(Protocol):
    """Shows the rehearsal while it goes on."""

    def begin(self, check: Check) -> None:
        """A check begins."""

    def detail(self, text: str) -> None:
        """What it is doing now."""

    def end(self, outcome: Outcome) -> None:
        """It is over."""


def run_checks(checks: Sequence[Check], view: View, log: Path) -> list[Outcome]:
    """Run the checks in order. Unexpected exceptions fail their check and leave their traceback in `log`."""
    outcomes: list[Outcome] = []
    blocked: set[str] = set()
    for check in checks:
        missing = [name for name in check.needs if name in blocked]
        view.begin(check)
        outcome = _skipped(check, missing) if missing else _run(check, view.detail, log)
        if outcome.blocks:
            blocked.add(check.name)
        outcomes.append(outcome)
        view.end(outcome)
    return outcomes


def _skipped(check: Check, missing: list[str]) -> Outcome:
    evidence = f"not tried: it needs {' and '.join(missing)}"
    return Outcome(check.name, check.proves, "skip", evidence, 0.0, check.shows, "put that right first", blocks=True)


def _run(check: Check, say: Say, log: Path) -> Outcome:
    began = time.monotonic()
    try:
        evidence = check.run(say)
    except CheckFailed as error:
        return _failed(check, began, error.evidence, error.remedy or check.remedy, error.blocks)
    except UserError as error:
        return _failed(check, began, error.message, error.fix or check.remedy, True)
    except Exception as error:
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"check {check.name}\n{traceback.format_exc()}\n")
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return _failed(check, began, f"{text} (traceback in {log})", check.remedy, True)
    seconds = time.monotonic() - began
    if evidence.absent is not None:
        return Outcome(check.name, check.proves, "skip", evidence.text, seconds, check.shows, evidence.absent, evidence.numbers)
    status: Status = "warn" if evidence.warning else "ok"
    return Outcome(
        check.name, check.proves, status, evidence.text, seconds, check.shows, evidence.warning or "", evidence.numbers
    )


def _failed(check: Check, began: float, evidence: str, remedy: str, blocks: bool) -> Outcome:
    return Outcome(check.name, check.proves, "fail", evidence, time.monotonic() - began, check.shows, remedy, blocks=blocks)
