"""One check run to its outcome, in whatever process: nothing is raised but an interrupt."""

from __future__ import annotations

import time
import traceback
from pathlib import Path
from typing import Any

from windtunnel.recipe import UserError

from .types import Check, CheckFailed, Evidence, Outcome, Rung, Say, Shows, Status


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
        return failed(check, context, began, error.message, error.fix)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: the user's own code is called
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"check {check.name}\n{traceback.format_exc()}\n")
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return failed(check, context, began, f"{text} (traceback in {log})", f"read the traceback; then: {check.fix}", log=log)
    return _held(check, context, began, evidence)


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
    """The outcome of a check that failed; `began` is when, on the monotonic clock."""
    return Outcome(
        check.name,
        check.proves,
        "fail",
        what,
        time.monotonic() - began,
        shows or check.shows,
        fix or check.fix,
        problems=problems if len(problems) > 1 else (),
        rung=rung_of(check, context),
        blocks=blocks,
        log="" if log is None else str(log),
    )


def not_run(check: Check, context: Any, causes: tuple[str, ...]) -> Outcome:
    """The outcome of a check that makes no sense because others failed."""
    return Outcome(
        check.name, check.proves, "skip", f"not run: it needs {' and '.join(causes)}", 0.0, check.shows, "put that right first",
        rung=rung_of(check, context), blocks=True, cause=causes,
    )  # fmt: skip


def rung_of(check: Check, context: Any) -> Rung:
    """The lowest rung that needs the check."""
    if check.rung == "target":
        rung: Rung = context.rung
        return rung
    return check.rung


def _held(check: Check, context: Any, began: float, evidence: Evidence) -> Outcome:
    status: Status = "skip" if evidence.absent is not None else "warn" if evidence.warnings else "ok"
    return Outcome(
        check.name, check.proves, status, evidence.text, time.monotonic() - began, check.shows, evidence.absent or "",
        dict(evidence.facts), tuple(evidence.warnings), rung=rung_of(check, context),
    )  # fmt: skip
