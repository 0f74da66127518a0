"""What a check is, what it finds, and what became of it. Plain data; importable without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Status = Literal["ok", "warn", "fail", "skip"]
Rung = Literal["cpu", "gpu", "node", "cluster"]
RUNGS: tuple[Rung, ...] = ("cpu", "gpu", "node", "cluster")
Shows = Literal["start", "first steps", "first validation", "first checkpoint", "first interruption", "end"]
"""When a failure would show on the target rig; `windtunnel.rehearse.late` puts a price on each."""
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
    """

    text: str
    facts: dict[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    absent: str | None = None


def always(context: Any) -> bool:
    """A check that applies to every recipe."""
    return True


@dataclass(frozen=True)
class Check:
    """One thing to be proven.

    Attributes:
        name: unique, what `--only` takes. proves: what holds when it passes. fix: what to do when it does not.
        run: gets the context and a function to report what it is doing; returns Evidence or raises CheckFailed.
            UserError is a failure too, with its own fix; any other exception is a failure with its traceback in the log.
        shows: when the same failure would show on the target rig.
        rung: the lowest rung that needs it: a failure there leaves lower rungs ready. 'target': the target rig's.
        needs: names of checks whose failure makes it pointless.
        applies: asked first, in the main process; False leaves the check out of the report.
        limit: seconds after which it is ended and has failed.
        apart: in a process of its own, so that it may hang, crash or be killed. `run` must then be a module's function.
        stage: the stage of a rehearsal that proves the same and more, so that a rehearsal leaves this check out.
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


@dataclass(frozen=True)
class Outcome:
    """A check and what came of it.

    Attributes:
        fix: what to do; empty for what passed. warnings: reservations about what passed.
        problems: (what, fix) of each thing that is wrong, where there are several.
        blocks: what needs it makes no sense. cause: the failed checks that kept it from being run.
        log: a file with the traceback or the last words of a check that broke down; empty otherwise.
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


class View(Protocol):
    """Shows checks while they run."""

    def begin(self, check: Check) -> None:
        """A check begins."""

    def detail(self, text: str) -> None:
        """What it is doing now."""

    def end(self, outcome: Outcome) -> None:
        """It is over."""


class Findings:
    """Collects what is wrong where several things are looked at, so that a check names all of them at once."""

    def __init__(self) -> None:
        self._problems: list[tuple[str, str | None]] = []
        self._warnings: list[str] = []
        self._shows: list[Shows] = []

    def problem(self, what: str, fix: str | None = None, *, shows: Shows | None = None) -> None:
        """Something that must be put right."""
        self._problems.append((what, fix))
        if shows:
            self._shows.append(shows)

    def warn(self, text: str) -> None:
        """Something to know; says what to do."""
        self._warnings.append(text)

    def evidence(self, text: str, facts: dict[str, Any] | None = None, *, blocks: bool = True) -> Evidence:
        """Evidence with the warnings. Raises CheckFailed when there was a problem; it names all of them and their fixes."""
        if self._problems:
            fixes = list(dict.fromkeys(fix for _, fix in self._problems if fix))
            what = "; ".join(problem for problem, _ in self._problems)
            shows = self._shows[0] if self._shows else None
            listed = [(problem, fix or "") for problem, fix in self._problems]
            raise CheckFailed(what, "; ".join(fixes) or None, blocks=blocks, shows=shows, problems=listed)
        return Evidence(text, facts or {}, tuple(self._warnings))
