"""The page of several runs: what each reached, and their curves on one chart each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from windtunnel.run import RunFolder

from .compare import RunResult
from .page import save, template
from .run_page import curves_of
from .text import count, dollars, duration, number


@dataclass(frozen=True)
class Line:
    """A run in the table: its name, and (heading, text) of what it reached."""

    name: str
    figures: list[tuple[str, str]]


@dataclass(frozen=True)
class ComparisonPage:
    """All of the page but the curves."""

    title: str
    subtitle: str
    runs: list[Line]
    recipe: str = ""


def write_comparison(results: Sequence[RunResult], path: Path) -> Path:
    """Write the page and return its path. Raises UserError: a run is damaged, or the file cannot be written."""
    page = ComparisonPage(f"{len(results)} runs", ", ".join(str(result.path) for result in results), [_line(r) for r in results])
    runs = [curves_of(RunFolder.open(result.path)) for result in results]
    return save(path, template("compare.html").render(report=page, curves={"runs": runs}))


def _line(result: RunResult) -> Line:
    figures = [
        ("steps", f"{result.steps:,}"), ("tokens", count(result.tokens)), ("best validation", number(result.loss)),
        ("bits per byte", number(result.bits_per_byte)), ("time", duration(3600 * result.hours)),
        ("spent", dollars(result.dollars)),
    ]  # fmt: skip
    return Line(result.name, figures)
