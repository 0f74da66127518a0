"""Faults that are planted one at a time, and what the check that should name each of them says."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import yaml

from windtunnel.check import Outcome, all_checks
from windtunnel.rehearse import Context, run_checks, select

Kind = Literal["recipe", "data", "environment", "plug-in", "rig", "weights"]
Rung = Literal["cpu", "gpu", "node", "cluster"]
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "WINDTUNNEL_CACHE", "GOMP_SPINCOUNT")
"""Of the environment; a fault's site begins with no other variable."""


@dataclass
class Site:
    """Where a fault is planted: a recipe with all it names, an environment, a machine. It begins healthy.

    Attributes:
        folder: for its files; also the current folder while the check runs.
        recipe: its keys, or a shipped recipe's name. overrides: 'key.path=value'. on: the rig to be ready for.
        environment: the process's, all of it. patches: (object, attribute, value) for what cannot be made on a healthy machine.
        kept: what is held open meanwhile.
    """

    folder: Path
    recipe: dict[str, Any] | str = "charlm"
    overrides: list[str] = field(default_factory=list)
    on: str = "8xH100"
    root: Path | None = None
    resume: Path | None = None
    sbatch: Path | None = None
    environment: dict[str, str] = field(default_factory=lambda: {k: os.environ[k] for k in KEPT if k in os.environ})
    patches: list[tuple[Any, str, Any]] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)

    def file(self, name: str, content: str | bytes) -> Path:
        """Write a file into the folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def lines(self, name: str, records: list[Any]) -> Path:
        """Write JSON lines."""
        return self.file(name, "".join(json.dumps(record) + "\n" for record in records))

    def program(self, name: str, body: str) -> None:
        """Put a shell script first in PATH."""
        path = self.file(f"bin/{name}", f"#!/bin/sh\n{body}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        self.environment["PATH"] = f"{path.parent}{os.pathsep}{os.environ['PATH']}"

    def set(self, *overrides: str) -> None:
        """Override keys of the recipe."""
        self.overrides += overrides

    def source(self) -> str:
        """The recipe as `windtunnel check` takes it."""
        if isinstance(self.recipe, str):
            return self.recipe
        return str(self.file("recipe.yaml", yaml.safe_dump(self.recipe, sort_keys=False)))


Plant = Callable[[Site], None]


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: what is wrong. kind: where it is planted. source: the table or study that it was drawn from.
        base: makes the healthy site. plant: the damage. check: which check must name it, with all these `words`.
        rung: the lowest rung that catches it; what needs more than 'cpu' is not planted, only listed.
        slow: it takes seconds, by its nature.
    """

    name: str
    kind: Kind
    source: str
    check: str
    words: tuple[str, ...]
    base: Plant | None = None
    plant: Plant | None = None
    rung: Rung = "cpu"
    slow: bool = False


Row = tuple[str, str, str | tuple[str, ...], Plant | None]


def group(kind: Kind, check: str, base: Plant | None, *, slow: bool = False) -> Callable[..., tuple[Fault, ...]]:
    """Makes faults of one kind, base and check from rows of (name, source, words, plant)."""

    def faults(*rows: Row) -> tuple[Fault, ...]:
        return tuple(
            Fault(name, kind, source, check, (words,) if isinstance(words, str) else words, base, plant, slow=slow)
            for name, source, words, plant in rows
        )

    return faults


def sets(*overrides: str) -> Plant:
    """Override keys of the recipe."""
    return lambda site: site.set(*overrides)


def variable(name: str, value: str) -> Plant:
    """Set an environment variable."""

    def plant(site: Site) -> None:
        site.environment[name] = value

    return plant


def attempt(folder: Path, check: str, *plants: Plant | None) -> tuple[Outcome | None, float]:
    """The outcome of a check, with its needs, at a site where these were planted; None: it was left out. And seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    site, before, began = Site(folder), Path.cwd(), time.monotonic()
    for plant in plants:
        if plant is not None:
            plant(site)
    with patch.dict(os.environ, site.environment, clear=True):
        os.chdir(folder)
        stopped = [patch.object(owner, name, value) for owner, name, value in site.patches]
        try:
            for one in stopped:
                one.start()
            context = Context(
                site.source(), tuple(site.overrides), (site.on,), folder=_scratch(folder), root=site.root or folder / "runs",
                resume=site.resume, sbatch=site.sbatch,
            )  # fmt: skip
            outcomes = run_checks(select(all_checks(), [check]), context, isolate=False)
        finally:
            for one in reversed(stopped):
                one.stop()
            os.chdir(before)
            for held in site.kept:
                held.close()
    found = {outcome.check: outcome for outcome in outcomes}
    return found.get(check), time.monotonic() - began


def _scratch(folder: Path) -> Path:
    path = folder / "scratch"
    path.mkdir(exist_ok=True)
    return path


def said(outcome: Outcome) -> str:
    """All that an outcome tells the user."""
    return " ".join((outcome.evidence, outcome.fix, *outcome.warnings))


def caught(fault: Fault, outcome: Outcome | None) -> bool:
    """Whether the check failed or warned in words that name the fault."""
    if outcome is None or outcome.status not in ("fail", "warn"):
        return False
    text = said(outcome).lower()
    return all(word.lower() in text for word in fault.words)


def falsely(fault: Fault, outcome: Outcome | None) -> bool:
    """Whether the check complains of the fault where there is none."""
    if outcome is None or outcome.status in ("ok", "skip"):
        return outcome is not None and bool(outcome.cause)
    text = said(outcome).lower()
    return outcome.status == "fail" or all(word.lower() in text for word in fault.words)
