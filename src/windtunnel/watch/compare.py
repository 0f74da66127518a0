"""Several runs beside each other: how their recipes differ, what they reached, and their losses on one picture."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.recipe import UserError
from windtunnel.run import MetricsReader, RunFolder, by_path, load_spent

from .curves import pace, thin
from .page import save, template
from .run_page import curves_of
from .text import count, dollars, duration, number

MOST_BEST = 5
PICTURES = (".png", ".svg", ".html")
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Scored:
    """A validation: its step and loss, and whether the weights of that step are still there."""

    step: int
    loss: float
    kept: bool


@dataclass(frozen=True)
class RunResult:
    """What a run reached; None: not known.

    Attributes:
        parameters: all of the model's; scaling: those that scaling laws count (matrices and head of our own model).
        best: its five best validations, best first. curves: 'tokens', 'hours' and 'dollars' -> validation losses over them.
        recipe: 'key.path' -> value. data: checksum of what it was trained on.
    """

    path: Path
    status: str
    model: str
    parameters: int | None
    scaling: float | None
    steps: int
    tokens: float
    loss: float | None
    bits_per_byte: float | None
    hours: float
    dollars: float | None
    planned_hours: float | None
    planned_dollars: float | None
    tokens_per_second: float | None
    planned_tokens_per_second: float | None
    best: tuple[Scored, ...]
    curves: dict[str, Points]
    recipe: dict[str, Any]
    data: str | None

    @property
    def name(self) -> str:
        """The folder's."""
        return self.path.name


def read_result(folder: Path) -> RunResult:
    """Read a run.

    Raises:
        UserError: no run folder, or damaged.
    """
    run = RunFolder.open(folder)
    plan = run.manifest.get("plan") or {}
    batch = float((plan.get("layout") or {}).get("batch_tokens") or 0.0)
    spent = load_spent(run.spent_path)
    series: dict[str, list[Any]] = {}
    if run.metrics_path.exists():
        with MetricsReader(run.metrics_path) as metrics:
            wanted = ("loss", "validation_loss", "validation_bits_per_byte", "dollars", "tokens_per_second")
            series = {name: metrics.series(name) for name in wanted}
    validations = series.get("validation_loss", [])
    steps = max((point.step for point in series.get("loss", [])), default=0)
    # By the folders' names, without opening checkpoints.
    kept = {int(path.name.split("-")[1]) for path in run.checkpoints_dir.glob("step-*") if path.name.split("-")[1].isdigit()}
    best = sorted((Scored(p.step, p.value, p.step in kept) for p in validations), key=lambda s: s.loss)
    speeds = [point.value for point in series.get("tokens_per_second", [])]
    # A plan's length is so many tokens a parameter, so that the count it was derived from comes back by division.
    per_parameter = run.recipe.pretrain.tokens_per_parameter
    own = plan.get("method") == "pretrain" and plan.get("derived_tokens")
    return RunResult(
        path=run.path,
        status=str(run.manifest.get("status", "?")),
        model=str(plan.get("model", "?")),
        parameters=plan.get("params"),
        scaling=plan["derived_tokens"] / per_parameter if own else plan.get("params"),
        steps=steps,
        tokens=steps * batch,
        loss=best[0].loss if best else None,
        bits_per_byte=min((point.value for point in series.get("validation_bits_per_byte", [])), default=None),
        hours=spent.seconds / 3600,
        dollars=spent.dollars if plan.get("dollars_per_hour") is not None else None,
        planned_hours=plan.get("hours"),
        planned_dollars=plan.get("dollars"),
        tokens_per_second=statistics.median_high(speeds) if speeds else None,
        planned_tokens_per_second=plan.get("tokens_per_second"),
        best=tuple(best[:MOST_BEST]),
        curves=_curves(validations, series.get("loss", []), series.get("dollars", []), batch),
        recipe=by_path(run.recipe.model_dump(mode="json")),
        data=(run.manifest.get("data") or {}).get("checksum"),
    )  # fmt: skip


def _curves(validations: list[Any], losses: list[Any], dollars: list[Any], batch: float) -> dict[str, Points]:
    """Return the validation losses over tokens, hours of training and dollars."""
    hours, money = pace(losses), {point.step: point.value for point in dollars}
    curves: dict[str, Points] = {"tokens": [], "hours": [], "dollars": []}
    for point in validations:
        if point.value != point.value:  # not a number
            continue
        curves["tokens"].append((point.step * batch, point.value))
        if point.step in hours:
            curves["hours"].append((hours[point.step], point.value))
        if point.step in money:
            curves["dollars"].append((money[point.step], point.value))
    return curves


def different_keys(results: Sequence[RunResult]) -> list[tuple[str, list[Any]]]:
    """Return the keys of the recipes that are not the same in all runs, each with its values."""
    keys = dict.fromkeys(key for result in results for key in result.recipe)
    rows = [(key, [result.recipe.get(key) for result in results]) for key in keys]
    # As JSON: to Python 1 and True are equal, and a recipe's 1 is another value than its true.
    return [(key, values) for key, values in rows if any(json.dumps(v) != json.dumps(values[0]) for v in values)]


def draw_comparison(results: Sequence[RunResult], path: Path) -> None:
    """Draw validation losses over tokens, hours and dollars beside each other; as .html all curves, on a page.

    Raises:
        UserError: none of .png, .svg and .html, nothing to draw, or the file cannot be written.
    """
    if path.suffix.lower() not in PICTURES:
        raise UserError(f"{path}: a comparison is drawn as {', '.join(PICTURES)}", f"name it {path.with_suffix('.png')}")
    if path.suffix.lower() == ".html":
        _write_page(results, path)
        return
    # Runs without a price have no curve over dollars; an empty panel would say nothing.
    shown = [name for name in ("tokens", "hours", "dollars") if any(len(result.curves[name]) > 0 for result in results)]
    if not shown:
        raise UserError("none of the runs has been validated yet: there is nothing to draw")
    # The class, not pyplot: no window system is asked for, and nothing global is left behind.
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(4.6 * len(shown), 3.8), layout="constrained")
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    for axes, name in zip(panels, shown, strict=True):
        for index, result in enumerate(results):
            points = thin(result.curves[name])
            if points:
                # Points are marked while they are few enough to be told apart.
                axes.plot(*zip(*points, strict=True), marker="o" if len(points) < 30 else None, markersize=3, color=f"C{index}",
                          label=result.name)  # fmt: skip
        axes.set_xlabel(name)
        axes.grid(alpha=0.3)
        if name == "tokens":
            axes.xaxis.set_major_formatter(EngFormatter())
    panels[0].set_ylabel("validation loss, nats a token")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(3, len(names)), frameon=False, fontsize=8)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror or error}", "name a file in a folder that is there and yours"
        ) from None


@dataclass(frozen=True)
class _Line:
    """A run in the table: its name, and (heading, text) of what it reached."""

    name: str
    figures: list[tuple[str, str]]


@dataclass(frozen=True)
class _ComparisonPage:
    """All of the page but the curves."""

    title: str
    subtitle: str
    runs: list[_Line]
    recipe: str = ""


def _write_page(results: Sequence[RunResult], path: Path) -> Path:
    """Write the page and return its path. Raises UserError: a run is damaged, or the file cannot be written."""
    page = _ComparisonPage(f"{len(results)} runs", ", ".join(str(result.path) for result in results), [_line(r) for r in results])
    runs = [curves_of(RunFolder.open(result.path)) for result in results]
    return save(path, template("compare.html").render(report=page, curves={"runs": runs}))


def _line(result: RunResult) -> _Line:
    figures = [
        ("steps", f"{result.steps:,}"), ("tokens", count(result.tokens)), ("best validation", number(result.loss)),
        ("bits per byte", number(result.bits_per_byte)), ("time", duration(3600 * result.hours)),
        ("spent", dollars(result.dollars)),
    ]  # fmt: skip
    return _Line(result.name, figures)
