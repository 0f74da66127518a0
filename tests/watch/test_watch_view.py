"""The views: a real pseudo-terminal, a pipe, and runs read from their folder while and after they train."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from waiting import HANG

from windtunnel.evaluate.comparison_text import count_text as compared
from windtunnel.plan import count_text
from windtunnel.recipe import UserError, load_recipe
from windtunnel.run import Metrics, RunFolder
from windtunnel.watch import JsonLines, PlainLines, Snapshot, TerminalView, finite, read_snapshot
from windtunnel.watch.text import count, duration, sparkline

LOOP = """
import math, sys, time
from windtunnel.watch import TerminalView
view = TerminalView()
for step in range(1, 21):
    time.sleep(0.02)
    view.update(dict(step=step, total_steps=20, loss=3 / step, losses=[3 / s for s in range(1, step + 1)], dollars=1.0,
                     dollars_forecast=9.0, dollars_budget=5.0, title="T" * 300,
                     alerts=[("warn", f"alert {i}", "advice [bold]") for i in range(9)]))
view.say("a line that stays [red]")
if "crash" in sys.argv: raise RuntimeError("boom")
view.close()
"""


def on_terminal(code: str, *arguments: str, columns: int = 100) -> tuple[int, str]:
    """Run code with a pseudo-terminal as its output; returns its exit status and all that the terminal got."""
    own, its = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "40"}
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdin=its, stdout=its, stderr=its, env=environment)
    os.close(its)
    got = b""
    deadline = time.monotonic() + HANG
    while time.monotonic() < deadline:
        if select.select([own], [], [], 0.2)[0]:
            try:
                data = os.read(own, 65536)
            except OSError:
                break
            if not data:
                break
            got += data
        elif process.poll() is not None:
            break
    os.close(own)
    return process.wait(timeout=HANG), got.decode()


@pytest.mark.parametrize("how", ["", "crash"])
def test_terminal_is_restored_and_shows_the_last_moment(how: str) -> None:
    status, got = on_terminal(LOOP, how)
    assert status == (1 if how else 0)
    assert got.rfind("\x1b[?25h") > got.rfind("\x1b[?25l") >= 0  # the cursor is visible again
    assert "step 20 of 20" in got.replace("\x1b[0m", "")
    assert "a line that stays [red]" in got
    assert ("RuntimeError: boom" in got) == bool(how)


@pytest.mark.parametrize("columns", [100, 80, 60])
def test_screen_fits_the_terminal(columns: int) -> None:
    from rich.console import Console

    from windtunnel.watch.screen import screen

    now = Snapshot(step=3, losses=[3.0, float("nan"), 1.0], title="x" * 300, memory_gib=70.0, memory_limit_gib=79.1)
    for moment in (Snapshot(), now, Snapshot(alerts=[("bad", "m" * 200, "a" * 200)] * 30)):
        stream = io.StringIO()
        Console(file=stream, width=columns, force_terminal=False).print(screen(moment, columns))
        lines = stream.getvalue().splitlines()
        assert max(map(len, lines)) <= columns
        assert len(lines) <= 50
        assert "bits per byte" in stream.getvalue()  # labels are whole
        assert "gradient norm" in stream.getvalue()


def test_forecast_over_budget_and_alerts_are_on_the_screen() -> None:
    from rich.console import Console

    from windtunnel.watch.screen import screen

    stream = io.StringIO()
    now = Snapshot(dollars_forecast=9.0, dollars_budget=5.0, alerts=[("warn", "slow", "look"), ("bad", "NaN", "went back")])
    Console(file=stream, width=100).print(screen(now, 100))
    text = stream.getvalue()
    for part in ("$9.00", "$5.00", "! slow. look", "✗ NaN. went back"):
        assert part in text


def test_a_pipe_gets_a_few_plain_lines_and_each_alert_once() -> None:
    stream = io.StringIO()
    with TerminalView(stream) as view:
        for step in range(1, 1001):
            alerts = [("warn", "slow", "look at data")] if step > 500 else []
            view.update({"step": step, "total_steps": 1000, "loss": 1.0, "alerts": alerts, "title": "a run", "unknown": 1})
    lines = stream.getvalue().splitlines()
    assert lines[0] == "a run"
    assert 10 <= len(lines) <= 15
    assert lines.count("warn: slow") == lines.count("  look at data") == 1
    assert lines[-1].startswith("training: step 1,000/1,000 (100 %)")
    assert "\x1b" not in stream.getvalue()


def test_an_alert_that_was_said_is_not_printed_again() -> None:
    stream = io.StringIO()
    with TerminalView(stream) as view:
        view.say("warn: slow\n  look at data")
        for _ in range(3):
            view.update(Snapshot(alerts=[("warn", "slow", "look at data"), ("bad", "NaN", "")]))
    assert stream.getvalue().splitlines()[:3] == ["warn: slow", "  look at data", "bad: NaN"]
    assert stream.getvalue().count("slow") == 1


def test_plain_lines_without_a_length_come_with_time_or_a_new_phase() -> None:
    stream = io.StringIO()
    lines = PlainLines(stream)
    for phase in ("training", "training", "validating", "finished"):
        lines.update(Snapshot(step=1, phase=phase))
    lines.close()
    assert [line.split(":")[0] for line in stream.getvalue().splitlines()] == ["training", "validating", "finished"]


def test_json_lines_are_json_even_for_nan() -> None:
    stream = io.StringIO()
    with JsonLines(stream, seconds=0) as view:
        view.update({"step": 1, "loss": float("nan"), "losses": [1.0]})
        view.update(Snapshot(step=2, loss=1.5))
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["step"], first["loss"], second["loss"]) == (1, "nan", 1.5)
    assert finite({"a": [float("inf"), (1.0,)]}) == {"a": ["inf", [1.0]]}


@given(st.lists(st.floats(), max_size=200), st.integers(1, 60))
@example([8.988465674311579e307, 8.98846567431158e307], 1)
def test_sparkline_is_as_wide_as_asked_for_any_numbers(values: list[float], width: int) -> None:
    line = sparkline(values, width)
    assert len(line) == min(width, len(values))
    assert set(line) <= set("▁▂▃▄▅▆▇█×")


def test_sparkline_rises_with_its_values() -> None:
    assert sparkline([1, 2, 3, 4, 5, 6, 7, 8], 8) == "▁▂▃▄▅▆▇█"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (65, "1:05"), (3725, "1:02:05"), (200_000, "2 d 7:33:20"), (None, "-")]
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_counts() -> None:
    assert [count(v) for v in (0.5, 999, 812_345, 1.384e9, None)] == ["0.5", "999", "812 k", "1.38 B", "-"]


@pytest.fixture
def run(tmp_path: Path):
    folder = RunFolder.create(
        tmp_path / "runs",
        load_recipe("charlm", ["model.depth=4", "budget.dollars=5"]),
        rig={"name": "2 CPU cores"},
        plan={"params": 4_100_000},
    )
    yield folder
    folder.close()


def fill(folder: RunFolder, steps: int = 50) -> None:
    with Metrics(folder.metrics_path) as metrics:
        for step in range(1, steps + 1):
            values = {"loss": 3.0 / step, "step_seconds": 0.5, "progress": step / 100, "tokens_per_second": 8192.0}
            metrics.log(
                step, {**values, "memory_gib": 6.0, "memory_share": 0.25, "gpu_utilisation": 97.0, "dollars": 0.01 * step}
            )
        metrics.event("band", steps, "throughput is 0.7 of the plan", "warn", {"advice": "look at data wait"})
        metrics.event("checkpoint", steps, "saved", "info")
        metrics.flush()


def test_a_running_run_is_read_without_disturbing_it(run: RunFolder) -> None:
    assert read_snapshot(run.path).phase == "starting"
    fill(run)
    now = read_snapshot(run.path)
    assert (now.step, now.total_steps, now.phase) == (50, 100, "training")
    assert now.loss == pytest.approx(0.06)
    assert len(now.losses) == 50
    assert now.eta == pytest.approx(25.0)
    assert now.memory_limit_gib == pytest.approx(24.0)
    assert now.dollars_budget == 5.0
    assert now.alerts == [("warn", "throughput is 0.7 of the plan", "look at data wait")]
    for part in ("charlm", "d4", "4.1 M parameters", "2 CPU cores"):
        assert part in now.title


def test_what_was_spent_after_the_last_step_is_shown_too(run: RunFolder) -> None:
    fill(run)
    before = read_snapshot(run.path)
    assert before.dollars == pytest.approx(0.5)
    run.spent_path.write_text('{"seconds": 7200, "dollars": 3.5}')
    now = read_snapshot(run.path)
    assert (now.elapsed, now.dollars) == (7200, 3.5)
    run.spent_path.write_text('{"seconds": 0, "dollars": 0}')
    assert read_snapshot(run.path) == before


def test_a_dead_run_says_so_and_a_finished_one_why(run: RunFolder) -> None:
    fill(run)
    run.close()
    assert read_snapshot(run.path).phase.startswith("failed: process ")
    run.finish("done", "budget of 50 steps")
    assert read_snapshot(run.path).phase == "done: budget of 50 steps"


def windtunnel(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "windtunnel", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG, cwd=cwd, check=False)


def test_watch_and_runs_on_a_real_run(run: RunFolder, tmp_path: Path) -> None:
    fill(run)
    run.finish("done", "budget")
    run.close()
    shown = windtunnel("watch", run.path.name, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "done: budget: step 50/100 (50 %)" in shown.stdout
    latest = json.loads(windtunnel("watch", "--json", cwd=tmp_path).stdout)
    assert latest["step"] == 50
    listed = windtunnel("runs", cwd=tmp_path)
    assert run.path.name in listed.stdout
    assert json.loads(windtunnel("runs", "--json", cwd=tmp_path).stdout)[0]["status"] == "done"


def test_damaged_metrics_and_strange_folders_are_messages(run: RunFolder, tmp_path: Path) -> None:
    run.metrics_path.write_bytes(b"garbage" * 1000)
    with pytest.raises(UserError, match=r"metrics\.sqlite"):
        read_snapshot(run.path)
    done = windtunnel("watch", str(run.path), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    (tmp_path / "empty").mkdir()
    done = windtunnel("watch", "empty", cwd=tmp_path)
    assert done.returncode == 2
    assert "is not a run folder" in done.stderr


@pytest.mark.parametrize("text", [count, count_text, compared])
def test_a_count_that_rounds_to_a_thousand_takes_the_next_unit(text: Callable[[float], str]) -> None:
    assert text(999_700_000) == "1 B"
    assert text(999_400_000) == "999 M"
    assert text(999_600) == "1 M"
    assert text(999.6) in {"1 k", "1000"}
    assert text(1_234_567) == "1.23 M"
    assert "e+" not in text(9.996e8) + text(9.996e5)
