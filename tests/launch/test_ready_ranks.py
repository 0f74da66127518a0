"""Ranks that are started before there is a run: it is trained by them, and none is left however the command ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tiny_recipes import write_tiny
from waiting import HANG, until

from windtunnel.launch import Options, ReadyRanks, prepare_run
from windtunnel.launch.ranks import run_ranks
from windtunnel.recipe import load_recipe
from windtunnel.run import MetricsReader, RunFolder

pytestmark = pytest.mark.end_to_end

MARK = "TEST_OF_READY_RANKS"
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the recipe; whatever is started is marked with its name."""
    monkeypatch.setenv(MARK, str(tmp_path))
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    write_tiny(tmp_path)
    return tmp_path


@pytest.fixture
def start(place: Path) -> Start:
    """start(ranks, 'argument', ...) starts a training of eight steps for which so many ranks are made ready."""

    def train(ready: int, *arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "windtunnel", "train", "tiny.yaml", "--yes", "--set", "budget.steps=8"]
        return subprocess.Popen(
            [*command, "--root", f"runs{ready}", *arguments], cwd=place, env={**os.environ, "WINDTUNNEL_READY_RANKS": str(ready)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip

    return train


def started(place: Path, word: str = "") -> list[psutil.Process]:
    """What the test has started and still runs, of which the command line has a word."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.pid != os.getpid() and process.environ().get(MARK) == str(place)
            if ours and process.status() != psutil.STATUS_ZOMBIE and word in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def losses(root: Path) -> list[float]:
    [metrics] = root.glob("*/metrics.sqlite")
    with MetricsReader(metrics) as reader:
        return [point.value for point in reader.series("loss")]


@pytest.mark.timeout(400)
def test_a_ready_rank_trains_the_run_as_the_command_itself_does(place: Path, start: Start) -> None:
    for ready in (0, 1, 2):
        command = start(ready)
        if ready:
            until(lambda: len(started(place, "ready_rank")) == ready)  # noqa: B023
        out, errors = command.communicate(timeout=HANG)
        assert command.returncode == 0, errors
        assert "done after 8 steps" in out
        until(lambda: not started(place))
    assert losses(place / "runs0") == losses(place / "runs1") == losses(place / "runs2")
    assert len(losses(place / "runs0")) == 8


@pytest.mark.timeout(400)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_ends_before_there_is_a_run_leaves_none(place: Path, start: Start, number: int) -> None:
    command = start(2)
    until(lambda: len(started(place, "ready_rank")) == 2)
    command.send_signal(number)
    out, errors = command.communicate(timeout=HANG)
    assert command.returncode != 0
    assert "Traceback" not in out + errors
    until(lambda: not started(place))


@pytest.mark.timeout(400)
def test_a_refused_training_leaves_none(place: Path, start: Start) -> None:
    command = start(2, "--set", "data.corpus.files=[missing.txt]")
    _, errors = command.communicate(timeout=HANG)
    assert command.returncode == 2
    assert "missing.txt" in errors
    until(lambda: not started(place))


@pytest.mark.timeout(400)
def test_a_detached_training_uses_and_ends_it(place: Path, start: Start) -> None:
    command = start(1, "--detach")
    out, errors = command.communicate(timeout=HANG)
    assert command.returncode == 0, errors
    assert "trains on without this terminal" in out
    until(lambda: not started(place))
    assert len(losses(place / "runs1")) == 8


@pytest.mark.timeout(400)
def test_ranks_that_were_lost_are_started_again_and_those_too_many_are_ended(place: Path) -> None:
    run = prepare_run(load_recipe(str(place / "tiny.yaml"), ["budget.steps=4", f"data.corpus.files=[{place / 'text.txt'}]"]),
                      Options(root=place / "runs", yes=True), lambda text: None)  # fmt: skip
    layout = run.manifest["plan"]["layout"]
    run.update(plan=run.manifest["plan"] | {"layout": layout | {"ranks": 2, "micro_batch": 4, "accumulation": 2}})
    run.close()
    with ReadyRanks(4) as ready:
        lost = next(one for one in started(place, "ready_rank 0"))
        lost.kill()
        # Whoever is still on its way out of memory is not yet known to be dead.
        until(lambda: not lost.is_running() or lost.status() == psutil.STATUS_ZOMBIE)
        with open(os.devnull, "w") as nowhere:
            run_ranks(run.path, 2, as_json=True, output=nowhere, ready=ready)
        assert not ready
    assert RunFolder.open(run.path).manifest["status"] == "done"
    until(lambda: not started(place))


@pytest.mark.timeout(400)
def test_one_that_waits_ends_with_its_input(place: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "windtunnel.launch.ready_rank", "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=place
    )
    time.sleep(0.2)
    out, _ = process.communicate(timeout=HANG)
    assert (process.returncode, out) == (0, b"")


@pytest.mark.timeout(400)
def test_ctrl_z_lets_the_rank_stand_still_too(place: Path, start: Start) -> None:
    command = start(1, "--set", "budget.steps=1000000", "--set", "bands.overfit_patience=1000000")
    until(lambda: list(place.glob("runs1/*/checkpoints/step-*")))
    command.send_signal(signal.SIGTSTP)
    until(lambda: {process.status() for process in started(place)} == {psutil.STATUS_STOPPED})
    command.send_signal(signal.SIGCONT)
    until(lambda: psutil.STATUS_STOPPED not in {process.status() for process in started(place)})
    command.send_signal(signal.SIGINT)
    _, errors = command.communicate(timeout=HANG)
    assert command.returncode == 3, errors
    until(lambda: not started(place))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_rank_that_is_told_to_stop_before_it_listens_leaves_a_stopped_run(place: Path, start: Start, number: int) -> None:
    command = start(1)
    until(lambda: started(place, "ready_rank"))
    [rank] = started(place, "ready_rank")
    rank.suspend()
    until(lambda: list(place.glob("runs1/*/tokenizer.json")))
    time.sleep(1.0)  # it is told what to train within this second
    command.send_signal(number)
    time.sleep(0.2)
    rank.resume()
    out, errors = command.communicate(timeout=HANG)
    assert "Traceback" not in out + errors
    [run] = (place / "runs1").iterdir()
    manifest = RunFolder.open(run).manifest
    assert command.returncode in (3, 130), errors
    assert manifest["status"] == "stopped"
    assert "ended without saving" in manifest["reason"]
    until(lambda: not started(place))
