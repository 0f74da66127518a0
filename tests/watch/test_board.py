"""The pages of runs in a browser: what they are told, who may ask, and what a real browser shows of it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import math
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import CHROMIUM, Browser
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import HANG, until
from watch_pages import TOKEN, pages_of

from windtunnel.recipe import UserError, load_recipe, stage_recipe
from windtunnel.run import Metrics, MetricsReader, RunFolder, sampled, silence, stretches
from windtunnel.watch.board import Board

PLAN = {
    "model": "GPT of depth 2", "method": "pretrain", "params": 1000, "layout": {"batch_tokens": 1024}, "hours": 2.0,
    "dollars": 8.0, "dollars_per_hour": 4.0, "tokens_per_second": 1000.0, "step_seconds": 1.0, "peak_gib": 1.5, "limit_gib": 70.0,
}  # fmt: skip


def make(root: Path, steps: int, *, loss: float = 3.0, evil: str = "") -> RunFolder:
    run = RunFolder.create(root, load_recipe("charlm", ["model.depth=2", "budget.dollars=10"]), rig={}, plan=PLAN)
    with Metrics(run.metrics_path) as metrics:
        for step in range(1, steps + 1):
            log(metrics, step, loss)
        metrics.event("band:gap", 1, f"a warning {evil}", "warn", {"advice": "some advice"})
    return run


def log(metrics: Metrics, step: int, loss: float = 3.0) -> None:
    values = {"loss": loss + 1 / step, "tokens_per_second": 900.0, "dollars": 0.01 * step, "progress": step / 1000}
    metrics.log(step, values | {"memory_gib": 1.4, "odd": math.nan if step % 2 else math.inf})


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    root = tmp_path / "runs"
    root.mkdir()
    with pages_of(root) as url:
        yield root, url


def ask(url: str, path: str, **headers: str) -> httpx.Response:
    return httpx.get(url + path, headers={"Authorization": f"Bearer {TOKEN}", **headers}, timeout=HANG)


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), min_size=1, max_size=300), st.integers(2, 50), st.integers(1, 9))
@settings(deadline=None, max_examples=25)
def test_stretches_have_every_point_once_and_keep_the_extremes(values: list[float | None], most: int, stride: int) -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as memory:
        memory.executescript("CREATE TABLE series (id, name); CREATE TABLE points (series, step, value, time);")
        memory.execute("INSERT INTO series VALUES (1, 'loss')")
        memory.executemany("INSERT INTO points VALUES (1, ?, ?, ?)", [(i * stride, v, float(i)) for i, v in enumerate(values)])
        reader = MetricsReader.__new__(MetricsReader)
        reader._connection = memory
        found = stretches(reader, "loss", most)
        numbers = [v for v in values if v is not None]
        assert len(found) <= most + 1
        assert sum(s.points for s in found) == len(values)
        assert [s.step for s in found] == sorted({s.step for s in found})
        assert found[-1].step == (len(values) - 1) * stride
        assert min((s.low for s in found if s.low is not None), default=None) == min(numbers, default=None)
        assert max((s.high for s in found if s.high is not None), default=None) == max(numbers, default=None)
        assert len(sampled(reader, "loss", most)) <= most


def test_a_run_that_should_train_and_does_not_is_silent(tmp_path: Path) -> None:
    with make(tmp_path, 3) as run, MetricsReader(run.metrics_path) as metrics:
        now = time.time()
        assert silence(run.path, metrics, now=now + 60) is None
        found = silence(run.path, metrics, now=now + 1000)
        assert found is not None
        assert 990 < found.seconds < 1010
        assert silence(run.path, None, now=now + 500) is None  # may still prepare its data
        assert silence(run.path, None, now=now + 700) is not None


def test_the_list_and_a_run_tell_what_there_is(tmp_path: Path) -> None:
    with make(tmp_path, 1000) as run:
        board = Board(tmp_path)
        (line,) = board.runs()["runs"]
        assert (line["status"], line["step"], line["planned_dollars"], line["silent"]) == ("running", 1000, 8.0, None)
        assert len(line["spark"]) == 40
        assert line["progress"] == 1.0
        whole = board.run(run.path.name)
        json.dumps(whole, allow_nan=False)  # what is not finite has a name
        charts = {chart["title"]: chart for chart in whole["charts"]}
        assert charts["odd"]["more"]
        assert [limit["name"] for limit in charts["Dollars"]["limits"]] == ["planned", "80 % of the budget", "budget"]
        points = charts["Loss"]["series"]["loss"]
        assert len(points) <= 401
        assert points[-1][0] == 1000
        assert whole["clock"][-1][:2] == [1000, 1000 * 1024]
        assert board.tail(run.path.name, 998)["series"]["loss"] == [[999, *[3 + 1 / 999] * 3], [1000, *[3.001] * 3]]
    for bad in ("..", "../x", "a/b", "nobody", ""):
        with pytest.raises(UserError):
            board.folder(bad)


def test_samples_and_stages_are_told_as_they_are_made(tmp_path: Path) -> None:
    def stage_run(stage: str, before: str | None) -> RunFolder:
        job = load_recipe("kernels")
        run = RunFolder.create(tmp_path, stage_recipe(job, stage), rig={}, plan=PLAN)
        run.keep_job(job)
        run.update(before={"run": before, "hours": 1.0, "dollars": 2.0} if before else None)
        return run

    board = Board(tmp_path)
    with stage_run("sft", None) as first, stage_run("rl", first.path.name) as second:
        first.finish("done", "budget.steps")
        for run in (first, second):  # either page shows all of the job
            assert [(s["name"], s["run"], s["status"]) for s in board.run(run.path.name)["stages"]] == [
                ("sft", first.path.name, "done"), ("rl", second.path.name, "running"),
            ]  # fmt: skip
        assert board.run(second.path.name)["samples"] == []
        stamp = board.moment(second.path.name)["made"]
        answers = [{"prompt": "1+1", "answer": f"a{i}", "reward": i / 8, "why": "no", "right": i == 7} for i in range(8)]
        (second.path / "rollouts").mkdir()
        (second.path / "rollouts" / "round-000012.jsonl").write_text("".join(json.dumps(a) + "\n" for a in answers))
        assert board.moment(second.path.name)["made"] != stamp  # the page asks again
        with Metrics(second.metrics_path) as metrics:
            wrong = [{"prompt": "2+2", "answer": "5", "truth": "4", "why": ""}]
            metrics.event("answers", 9, "held-out answers: 0 of 1", data={"wrong": wrong})
        rounds, asked = board.run(second.path.name)["samples"]
        assert rounds["title"].startswith("Round 12")
        assert [one["text"] for one in rounds["samples"]] == ["a7", "a6", "a1", "a0"]  # the best and the worst
        assert (asked["samples"][0]["text"], asked["samples"][0]["note"]) == ("5", "expected 4")


def test_only_those_with_the_token_read(served: tuple[Path, str]) -> None:
    root, url = served
    with make(root, 5) as run:
        name = run.path.name
        for path in ("/api/runs", f"/api/runs/{name}", "/api/events", f"/api/runs/{name}/ticket"):
            assert httpx.get(url + path, timeout=HANG).status_code == 401
        assert httpx.get(url + "/", timeout=HANG).status_code == 200
        assert ask(url, "/api/runs").json()["runs"][0]["name"] == name
        for path in ("/api/runs/none", "/api/runs/..%2fetc", "/static/../board.py", "/static/%2e%2e/board.py"):
            assert ask(url, path).status_code == 404
        assert ask(url, "/api/runs", Origin="http://elsewhere").status_code == 403
        assert httpx.post(url + "/api/runs", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=HANG).status_code == 405
        before = sorted(p.name for p in run.path.iterdir())
        address = ask(url, f"/api/runs/{name}/ticket").json()["url"]
        report = httpx.get(url + address, timeout=HANG)
        assert "<h1>charlm" in report.text
        script = report.text.rpartition('<script type="module">')[2].partition("</script>")[0]
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"script-src 'sha256-{digest}';" in report.headers["content-security-policy"]  # that one and no other
        assert httpx.get(url + "/report/guessed", timeout=HANG).status_code == 404
        assert sorted(p.name for p in run.path.iterdir()) == before  # reading writes nothing


def test_new_points_are_told_as_they_come(served: tuple[Path, str]) -> None:
    root, url = served
    with make(root, 5) as run:
        path = f"{url}/api/runs/{run.path.name}/events?since=5"
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with httpx.stream("GET", path, headers=headers, timeout=HANG) as answer, Metrics(run.metrics_path) as metrics:
            lines = (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))
            first: dict[str, Any] = next(lines)
            assert (first["last"], first["series"]) == (5, {})
            log(metrics, 6)
            assert next(lines)["series"]["loss"][0][0] == 6


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_browser_shows_the_runs_and_the_newest_step(served: tuple[Path, str], tmp_path: Path) -> None:
    root, url = served
    evil = "<img src=x onerror=\"document.title='broken'\">"
    with make(root, 50, evil=evil) as run, make(root, 30) as other, Browser(tmp_path / "profile") as browser:
        other.finish("failed", evil)
        for width in (1200, 400):
            browser.open(f"{url}/#token={TOKEN.replace(' ', '%20')}", width)
            browser.until("document.querySelectorAll('tbody tr').length == 2")
            assert browser.value("location.href") == f"{url}/#/"  # the token is out of sight
            assert browser.value("document.documentElement.scrollWidth") == width
            browser.value("[...document.querySelectorAll('tbody input')].forEach(box => box.checked || box.click())")
            browser.until("!document.querySelector('.bar button').disabled")
            browser.value("document.querySelector('.bar button').click()")
            browser.until("document.querySelectorAll('canvas').length > 3")
            assert browser.value("document.documentElement.scrollWidth") == width
            loss = "[...document.querySelectorAll('.chart')].find(c => c.innerText.startsWith('Loss'))"
            assert browser.value(f"{loss}.querySelectorAll('.legend span').length") == 2  # a curve of each run
            browser.value(f"location.hash = '#/run/{run.path.name}'")
            browser.until("document.querySelector('.figures b')?.textContent.startsWith('50')")
            browser.until("[...document.querySelectorAll('.legend span')].some(chip => chip.textContent.startsWith('budget 10'))")
            assert browser.value("document.documentElement.scrollWidth") == width
            assert evil in browser.until("document.querySelector('ul.events')?.textContent")
        with Metrics(run.metrics_path) as metrics:
            log(metrics, 51)
            browser.until("document.querySelector('.figures b').textContent.startsWith('51')")
        painted = "(c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v))"
        assert browser.value(f"{painted}(document.querySelector('.chart canvas'))") is True
        assert browser.value("document.title").startswith(run.path.name)
        assert browser.problems == []


def test_the_verb_prints_where_it_is(tmp_path: Path) -> None:
    from windtunnel.watch import serve_board

    told: list[str] = []
    # In a thread signals cannot end it: it ends with the process.
    threading.Thread(target=lambda: serve_board(tmp_path, port=0, token=None, on_ready=told.append), daemon=True).start()
    until(lambda: told, "the page was never ready")
    address, _, token = told[0].partition("#token=")
    answer = httpx.get(f"{address}api/runs", headers={"Authorization": f"Bearer {token}"}, timeout=HANG)
    assert answer.json() == {"root": str(tmp_path), "runs": []}
