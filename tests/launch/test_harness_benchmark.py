"""What measurements of several sides share: they end in time with all that they started, and what is known is in a file."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import HANG, until

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("harness")


@pytest.fixture
def bench(harness: Any, tmp_path: Path) -> Iterator[Any]:
    with harness.Bench(tmp_path / "out.json", {"sides": {}}, 1000.0, gpu=False) as bench:
        yield bench


def side(harness: Any, folder: Path, program: str, **more: Any) -> Any:
    return harness.Side([sys.executable, "-c", textwrap.dedent(program)], folder / "side.log", **more)


def test_a_side_that_ends_is_told_with_what_it_found(harness: Any, bench: Any, tmp_path: Path) -> None:
    program = "import os, sys; print(os.environ['GIVEN'], flush=True); sys.exit(3)"

    def look(since: float) -> None:
        bench.found["sides"]["one"] = {"since": since}
        bench.write()

    ended = bench.run(side(harness, tmp_path, program, environment={"GIVEN": "words"}), HANG, look)
    assert (ended.code, ended.stopped, ended.how, ended.words) == (3, False, "exit code 3", "words\n")
    assert json.loads((tmp_path / "out.json").read_text()) == {"sides": {"one": {"since": ended.began}}}
    assert bench.meter.peak(ended.began) is not None


def test_a_side_whose_time_is_over_is_ended_with_all_that_it_started(harness: Any, bench: Any, tmp_path: Path) -> None:
    program = f"""
        import subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep({HANG})"], start_new_session=True)
        open("{tmp_path}/child", "w").write(str(child.pid))
        time.sleep({HANG})
    """
    started = tmp_path / "child"

    class Soon:
        """A time that is over once the child is there."""

        def __radd__(self, now: float) -> Any:
            return self

        def __le__(self, now: float) -> bool:
            return bool(started.exists() and started.read_text())

    ended = bench.run(side(harness, tmp_path, program), Soon())
    assert (ended.code, ended.stopped, ended.how) == (None, True, "its time was over")
    child = int(started.read_text())
    until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE, "it still runs")


def test_a_side_that_may_save_first_ends_by_itself(harness: Any, bench: Any, tmp_path: Path) -> None:
    program = f"""
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), sys.exit(3)))
        time.sleep({HANG})
    """
    ended = bench.run(side(harness, tmp_path, program, grace=HANG), 2.0)
    assert ended.stopped
    assert ended.how in (
        "its time was over, exit code 3",
        f"its time was over, exit code {-signal.SIGTERM}",
    )  # before its handler


def test_what_one_turn_leaves_goes_to_the_next(bench: Any) -> None:
    given = dict(bench.turns({"a": 1.0, "b": 3.0}))  # neither takes any time
    assert given["a"] == pytest.approx(250, rel=0.1)
    assert given["b"] == pytest.approx(1000, rel=0.1)


def test_all_ends_when_its_time_is_over(tmp_path: Path) -> None:
    program = f"""
        import sys, time
        sys.path.insert(0, {str(BENCHMARKS)!r})
        import harness
        from pathlib import Path
        harness.OVER_SECONDS = 0.5
        bench = harness.Bench(Path({str(tmp_path / "out.json")!r}), {{"known": 1}}, 0.5, gpu=False)
        with bench:
            bench.write()
            time.sleep({HANG})
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=HANG, env=os.environ.copy(), check=False)
    assert done.returncode == 3
    assert json.loads((tmp_path / "out.json").read_text()) == {"known": 1}


def test_parts_of_a_round_are_all_of_it(harness: Any) -> None:
    value = {"generating_seconds": 5.0, "judging_seconds": 2.0, "learning_seconds": 1.0, "publish_seconds": 0.25}
    parts = harness.round_parts(value, 10.0)
    assert parts == {"weights": 0.25, "generating": 3.0, "judging": 2.0, "learning": 1.0, "rest": 3.75}
    assert harness.medians([{"parts": parts}, {"parts": parts | {"rest": 0.75}}])["rest"] == 2.25
    assert harness.medians([]) == {}
