"""What a check is, what it finds, and what became of it. Plain data; importable without torch."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from windtunnel.recipe import MissingModel, UserError

Status = Literal["ok", "warn", "fail", "skip"]
Rung = Literal["cpu", "gpu", "node", "cluster"]
# From what every machine has to what is rented: a rung stands on all those before it.
RUNGS: tuple[Rung, ...] = ("cpu", "gpu", "node", "cluster")
Shows = Literal["start", "first steps", "first validation", "first checkpoint", "first interruption", "end"]
"""When a failure would show on the target rig; `windtunnel.rehearse.readiness` puts a price on each."""
Say = Callable[[str], None]
LIMIT_SECONDS = 120.0
"""Against hangs: many times what a check takes, since the machine may be busy."""


class CheckFailed(Exception):
    """What should hold does not.

    Args:
        what: what was seen instead.
        fix: what to do; None: the check's own.
        blocks: whether the checks that need this one make no sense now.
        shows: when it would show on the target rig; None: as the check says.
        problems: (what, fix) of each, where there are several.
    """

    def __init__(
        self,
        what: str,
        fix: str | None = None,
        *,
        blocks: bool = True,
        shows: Shows | None = None,
        problems: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(what)
        self.what, self.fix, self.blocks, self.shows, self.problems = what, fix, blocks, shows, tuple(problems)


@dataclass(frozen=True)
class Evidence:
    """What a check saw.

    Attributes:
        text: one sentence with numbers. facts: the same as JSON values, for the report and for later checks.
        warnings: it holds, but; each says what to do. absent: this machine cannot tell, and what can.
        lacks: what `windtunnel train` on this machine would refuse to begin without, and the command that brings each.
    """

    text: str
    facts: dict[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    absent: str | None = None
    lacks: Sequence[tuple[str, str]] = ()


def always(context: Any) -> bool:
    """Return True, for a check that applies to every recipe."""
    return True


@dataclass(frozen=True)
class Check:
    """One thing to be proven.

    Attributes:
        name: unique, what `--only` takes. proves: what holds when it passes. fix: what to do when it does not.
        run: gets the context and a function to report what it is doing; returns Evidence or raises CheckFailed.
            UserError is a failure too, with its own fix; a MissingModel only on the machine that trains. Any other
            exception is a failure with its traceback in the log.
        shows: when the same failure would show on the target rig.
        rung: the lowest rung that needs it: a failure there leaves lower rungs ready. 'target': the target rig's.
        needs: names of checks whose failure makes it pointless.
        applies: asked first, in the main process; False leaves the check out of the report.
        limit: seconds after which it is ended and has failed.
        apart: in a process of its own, so that it may hang, crash or be killed. `run` must then be a module's function.
        stage: the stage of a rehearsal that proves the same and more, so that a rehearsal leaves this check out.
        forks: it starts programs of windtunnel by `context.forker`, where there is one.
    """

    name: str
    proves: str
    fix: str
    run: Callable[[Any, Say], Evidence]
    shows: Shows = "start"
    rung: Rung | Literal["target"] = "cpu"
    needs: tuple[str, ...] = ()
    applies: Callable[[Any], bool] = always
    limit: float = LIMIT_SECONDS
    apart: bool = True
    stage: str | None = None
    forks: bool = False


@dataclass(frozen=True)
class Outcome:
    """A check and what came of it.

    Attributes:
        fix: what to do; empty for what passed. warnings: reservations about what passed.
        problems: (what, fix) of each thing that is wrong, where there are several.
        blocks: what needs it makes no sense. cause: the failed checks that kept it from being run.
        log: a file with the traceback or the last words of a check that broke down; empty otherwise.
        lacks: as of Evidence.
    """

    check: str
    proves: str
    status: Status
    evidence: str
    seconds: float
    shows: Shows
    fix: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()
    rung: Rung = "cpu"
    blocks: bool = False
    cause: tuple[str, ...] = ()
    log: str = ""
    lacks: tuple[tuple[str, str], ...] = ()


class CheckView(Protocol):
    """Shows checks while they run."""

    def begin(self, check: Check) -> None:
        """Note that a check begins."""

    def detail(self, text: str) -> None:
        """Note what it is doing now."""

    def end(self, outcome: Outcome) -> None:
        """Note that it is over."""


class Findings:
    """Collects what is wrong where several things are looked at, so that a check names all of them at once."""

    def __init__(self) -> None:
        self._problems: list[tuple[str, str | None]] = []
        self._warnings: list[str] = []
        self._shows: list[Shows] = []

    def problem(self, what: str, fix: str | None = None, *, shows: Shows | None = None) -> None:
        """Something that must be put right."""
        self._problems.append((what, fix))
        # The first problem decides when the failure would show: it is the one that ends the job.
        if shows:
            self._shows.append(shows)

    def warn(self, text: str) -> None:
        """Something to know; says what to do."""
        self._warnings.append(text)

    def evidence(self, text: str, facts: dict[str, Any] | None = None, *, blocks: bool = True) -> Evidence:
        """Evidence with the warnings. Raises CheckFailed when there was a problem; it names all of them and their fixes."""
        if self._problems:
            # Several problems may have one fix.
            fixes = list(dict.fromkeys(fix for _, fix in self._problems if fix))
            what = "; ".join(problem for problem, _ in self._problems)
            shows = self._shows[0] if self._shows else None
            listed = [(problem, fix or "") for problem, fix in self._problems]
            raise CheckFailed(what, "; ".join(fixes) or None, blocks=blocks, shows=shows, problems=listed)
        return Evidence(text, facts or {}, tuple(self._warnings))


def attempt(check: Check, context: Any, say: Say, log: Path) -> Outcome:
    """Run a check here. An exception that is no CheckFailed or UserError leaves its traceback in `log`."""
    began = time.monotonic()
    try:
        evidence = check.run(context, say)
    except CheckFailed as error:
        return failed(
            check, context, began, error.what, error.fix, blocks=error.blocks, shows=error.shows, problems=error.problems
        )
    except UserError as error:
        # Files that belong on the machine that trains are no failure of this one; they are named as lacking.
        if isinstance(error, MissingModel) and trains_elsewhere(context):
            return _held(check, context, began, Evidence(error.message, absent=error.fix, lacks=(error.lacks,)))
        return failed(check, context, began, error.message, error.fix)
    # Ctrl-C ends the whole report, and is no finding of one check.
    except KeyboardInterrupt:
        raise
    # Its place in the log, its first line in the report: whoever reads one needs the other.
    except BaseException as error:  # SystemExit too: the user's own code is called
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"check {check.name}\n{traceback.format_exc()}\n")
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return failed(check, context, began, f"{text} (traceback in {log})", f"read the traceback; then: {check.fix}", log=log)
    if not isinstance(evidence, Evidence):  # the function may be a user's
        what = f"its function returned {type(evidence).__name__}, expected Evidence"
        return failed(check, context, began, what, "return windtunnel.check.Evidence(TEXT), or raise CheckFailed")
    return _held(check, context, began, evidence)


def trains_elsewhere(context: Any) -> bool:
    """Return whether the target has GPUs and this machine has none, so that the model's files belong on another machine."""
    return context.here.gpu is None and context.rig.gpu is not None


def failed(
    check: Check,
    context: Any,
    began: float,
    what: str,
    fix: str | None = None,
    *,
    blocks: bool = True,
    shows: Shows | None = None,
    log: Path | None = None,
    problems: tuple[tuple[str, str], ...] = (),
) -> Outcome:
    """Return the outcome of a check that failed; `began` is when, on the monotonic clock."""
    return Outcome(
        check.name,
        check.proves,
        "fail",
        what,
        time.monotonic() - began,
        shows or check.shows,
        fix or check.fix,
        # One problem is already the evidence and the fix; listing it would say it twice.
        problems=problems if len(problems) > 1 else (),
        rung=rung_of(check, context),
        blocks=blocks,
        log="" if log is None else str(log),
    )


def not_run(check: Check, context: Any, causes: tuple[str, ...]) -> Outcome:
    """Return the outcome of a check that makes no sense because others failed."""
    return Outcome(
        check.name, check.proves, "skip", f"not run: it needs {' and '.join(causes)}", 0.0, check.shows, "put that right first",
        rung=rung_of(check, context), blocks=True, cause=causes,
    )  # fmt: skip


def rung_of(check: Check, context: Any) -> Rung:
    """Return the lowest rung that needs the check."""
    if check.rung == "target":
        rung: Rung = context.rung
        return rung
    return check.rung


def _held(check: Check, context: Any, began: float, evidence: Evidence) -> Outcome:
    # What this machine cannot tell is no reservation about what it can.
    status: Status = "skip" if evidence.absent is not None else "warn" if evidence.warnings else "ok"
    return Outcome(
        check.name, check.proves, status, evidence.text, time.monotonic() - began, check.shows, evidence.absent or "",
        dict(evidence.facts), tuple(evidence.warnings), rung=rung_of(check, context), lacks=tuple(evidence.lacks),
    )  # fmt: skip
