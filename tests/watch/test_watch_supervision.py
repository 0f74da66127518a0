"""Watching recursion: losses by supervision step on the screen, in a line and on the page of a run."""

from __future__ import annotations

import io
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console
from test_watch_report import Page
from waiting import HANG

from windtunnel.recipe import UserError, load_recipe
from windtunnel.run import Metrics, MetricsReader, RunFolder, of_step
from windtunnel.watch import Report, Snapshot, read_snapshot, supervision_curves, write_report, write_run_page
from windtunnel.watch.live import plain_line
from windtunnel.watch.page import save
from windtunnel.watch.screen import screen
from windtunnel.watch.supervision import smoothed
from windtunnel.watch.text import chain

EVIL = "<script>alert(1)</script>"
STEPS = 200


def drawn(now: Snapshot, columns: int = 100) -> str:
    stream = io.StringIO()
    Console(file=stream, width=columns).print(screen(now, columns))
    return stream.getvalue()


@pytest.mark.parametrize("columns", [100, 70])
@pytest.mark.parametrize("supervision", [2, 4, 16, 64])
def test_losses_by_step_take_one_line_each(columns: int, supervision: int) -> None:
    losses = [12.345 - i / 10 for i in range(supervision)]
    text = drawn(Snapshot(step_losses=losses, validation_steps=losses), columns)
    lines = [line for line in text.splitlines() if "refined" in line]
    assert len(lines) == 2
    assert max(map(len, text.splitlines())) <= columns
    for line in lines:
        assert "12.345" in line
        assert f"{losses[-1]:.3f}" in line
        assert "in order" in line
        assert "not in order" not in line


def test_inverted_losses_are_said_to_be_so() -> None:
    assert "not in order" in drawn(Snapshot(step_losses=[2.0, 2.1, 1.9]))


def test_a_plain_model_has_no_such_lines() -> None:
    text = drawn(Snapshot(losses=[1.0], loss=1.0))
    assert "order" not in text
    assert "refine" not in text
    assert "refinement" not in plain_line(Snapshot(loss=1.0, step_losses=[1.0]))


def test_a_plain_line_tells_refinement() -> None:
    assert "refinement 25.0 %" in plain_line(Snapshot(loss=3.0, step_losses=[4.0, 3.5, 3.0]))


def test_bits_per_byte_of_each_supervision_step_are_on_the_screen_and_in_a_line() -> None:
    now = Snapshot(loss=3.0, step_losses=[4.0, 3.0], bpb=1.25, bpb_steps=[1.5, 1.375, 1.25])
    (row,) = [line for line in drawn(now).splitlines() if "1.500" in line]
    for part in ("bits per byte", "1.500 → 1.375 → 1.250", "refined 16.7 %", "in order"):
        assert part in row
    assert "bpb 1.2500  (by step 1.500 → 1.375 → 1.250)" in plain_line(now)
    assert "by step" not in plain_line(Snapshot(loss=3.0, bpb=1.25))


def test_long_chains_keep_their_ends() -> None:
    assert chain([1.0, 2.0]) == "1.000 → 2.000"
    assert chain([float(i) for i in range(10)], 4) == "0.000 → 1.000 … 8.000 → 9.000"


def test_smoothing_keeps_the_mean_and_leaves_out_what_is_not_finite() -> None:
    points = [(float(i), float(i % 2)) for i in range(1000)]
    assert all(value == 0.5 for _, value in smoothed(points, 100))
    assert smoothed([(0.0, math.nan), (1.0, 2.0)]) == [(1.0, 2.0)]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A recursive run that has ended, with gates and a warning."""
    recipe = load_recipe("trm", [f"description={EVIL}"])
    folder = RunFolder.create(tmp_path / "runs", recipe, rig={"name": "8xH100"}, plan={"params": 123e6, "vocab": 8192})
    with Metrics(folder.metrics_path) as metrics:
        for step in range(1, STEPS + 1):
            losses = [9.0 * math.exp(-step / 100) * (1 - 0.05 * i) for i in range(4)]
            values = {of_step("loss", i): loss for i, loss in enumerate(losses)}
            values |= {
                "loss": losses[-1],
                "refinement": 15.0,
                "supervision_order": 1.0,
                "gradient_norm": 1.0,
                "progress": step / STEPS,
            }
            if step % 50 == 0:
                values |= {of_step("validation_loss", i): loss * 1.1 for i, loss in enumerate(losses)}
                values |= {of_step("bits_per_byte", i): loss / 3 for i, loss in enumerate(losses)}
                values["validation_loss"] = losses[-1] * 1.1
            metrics.log(step, values)
        metrics.event("band:refinement", 180, EVIL, "warn", {"advice": "train longer"})
        metrics.flush()
    gates = [
        {"name": "order", "held": True, "value": True, "limit": True, "advice": ""},
        {"name": "gradient_norm", "held": False, "value": 17.25, "limit": [0.5, 1.5], "advice": "halve the rates"},
    ]
    folder.update(gates=gates)
    folder.finish("done", "budget.steps: 200 steps done")
    folder.close()
    return folder


def test_the_page_of_a_run_shows_gates_losses_by_step_and_refinement(run: RunFolder) -> None:
    text = write_run_page(run.path).read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    for part in ("Refinement", "gradient_norm", "17.25", "0.5 – 1.5", "halve the rates", EVIL):
        assert part in page.text, part
    assert "✗ done" in page.text, "a run whose gates failed is not good"
    charts = page.charts
    # By step, held out, refinement, order.
    assert [chart["place"] for chart in charts.values() if "place" in chart] == ["supervision"] * 4
    assert "Loss" in charts
    assert "Loss after each supervision step" not in charts
    by_step = charts["Training loss after each supervision step"]
    assert by_step["names"] == [f"after step {i}" for i in range(4)]
    assert by_step["log"]
    assert by_step["limits"][0]["value"] == pytest.approx(math.log(8192), rel=1e-5)


def test_bits_per_byte_by_step_and_the_norms_of_each_update_are_on_the_page(run: RunFolder) -> None:
    assert "0.406 → 0.386 → 0.365 → 0.345" in Page(write_run_page(run.path).read_text(encoding="utf-8")).text
    assert Page(write_run_page(run.path).read_text(encoding="utf-8")).charts["Gradient norm"]["names"] == ["gradient_norm"]
    with Metrics(run.metrics_path) as metrics:
        for step in range(1, STEPS + 1):
            metrics.log(step, {of_step("gradient_norm", i): 1.0 + i for i in range(16)})
        metrics.flush()
    chart = Page(write_run_page(run.path).read_text(encoding="utf-8")).charts["Gradient norm"]
    # As many as there are colours: the first, the last and some between.
    assert len(chart["names"]) == 8
    assert chart["names"][0] == "gradient_norm"
    assert chart["series"]["gradient_norm_step_15"][0] == [1, 16.0, 16.0, 16.0]


class Cells(HTMLParser):
    """The rows of the first table under a heading: of each cell its classes, its span and its text."""

    def __init__(self, text: str, heading: str) -> None:
        super().__init__()
        self.rows: list[list[tuple[set[str], int, str]]] = []
        self.feed(text.partition(f"<h2>{heading}</h2>")[2].partition("</table>")[0])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            given = dict(attrs)
            self.rows[-1].append((set((given.get("class") or "").split()), int(given.get("colspan") or 1), ""))

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            classes, span, text = self.rows[-1][-1]
            self.rows[-1][-1] = classes, span, text + data


def test_a_gates_figures_wrap_and_what_to_do_has_the_tables_width(run: RunFolder) -> None:
    """However long the values: nothing that may not wrap stands beside what to do, which has a row but for its sign."""
    text = write_run_page(run.path).read_text(encoding="utf-8")
    rules = re.findall(r"([^{}]+)\{[^{}]*white-space: nowrap", text.partition("<style>")[2].partition("</style>")[0])
    unbroken = {name for selector in rules for name in re.findall(r"\.([a-z]+)", selector)}
    assert {"n", "status"} <= unbroken
    head, *rows = Cells(text, "Gates").rows
    (at,) = [i for i, row in enumerate(rows) if "halve the rates" in row[-1][2]]
    _, advice = rows[at]
    assert not advice[0] & unbroken
    assert advice[1] == len(head) - 1 >= 3
    _, (_, _, name), value, limit = rows[at - 1]
    assert (name, value[2], limit[2]) == ("gradient_norm", "17.25", "0.5 – 1.5\n")
    assert not (value[0] | limit[0]) & unbroken


def test_curves_are_the_metrics(run: RunFolder) -> None:
    with MetricsReader(run.metrics_path) as metrics:
        curves = supervision_curves(metrics, 8192)
    assert curves is not None
    assert curves.uniform == pytest.approx(math.log(8192))
    assert [curve.name for curve in curves.training] == [f"after step {i}" for i in range(4)]
    assert [x for x, _ in curves.held_out[0].points] == [50, 100, 150, 200]
    assert all(y == pytest.approx(15.0) for curve in curves.refinement for _, y in curve.points)
    assert all(y == 100 for _, y in curves.order[0].points)
    page = Page(write_report(run.path / "r.html", Report("t", "v", True, supervision=curves)).read_text(encoding="utf-8"))
    assert "after step 3" in page.charts["Training loss after each supervision step"]["names"]


def test_a_plain_run_has_a_page_too(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, load_recipe("charlm"), rig={"name": "here"}, plan={"params": 1e6}) as folder:
        assert "starting" in write_run_page(folder.path).read_text(encoding="utf-8")
        with Metrics(folder.metrics_path) as metrics:
            metrics.log(1, {"loss": 2.0})
            metrics.flush()
            with MetricsReader(folder.metrics_path) as reader:
                assert supervision_curves(reader) is None
        page = Page(write_run_page(folder.path).read_text(encoding="utf-8"))
        assert "Supervision steps" not in page.text
        with pytest.raises(UserError, match="cannot be written"):
            save(tmp_path / "missing" / "r.html", "")


def test_a_run_is_followed_from_outside_and_its_page_written_by_hand(run: RunFolder, tmp_path: Path) -> None:
    now = read_snapshot(run.path)
    assert len(now.step_losses) == 4
    assert len(now.validation_steps) == 4
    assert now.bpb_steps == [9.0 * math.exp(-STEPS / 100) * (1 - 0.05 * i) / 3 for i in range(4)]
    once = [sys.executable, "-m", "windtunnel", "watch", str(run.path), "--once"]
    plain = subprocess.run(once, capture_output=True, text=True, timeout=HANG, check=False, cwd=tmp_path)
    assert "by step 0.406 → 0.386 → 0.365 → 0.345" in plain.stdout
    assert now.refinement == pytest.approx(15.0)
    for option in ("--html", "--json"):
        command = [sys.executable, "-m", "windtunnel", "watch", str(run.path), option]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        if option == "--json":
            assert len(json.loads(done.stdout)["step_losses"]) == 4
        else:
            assert str(run.report_path.name) in done.stdout
            assert run.report_path.exists()
