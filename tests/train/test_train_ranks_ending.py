"""Ranks that die or stand still, and runs whose last session could not say how it ended."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from conftest import events, losses

from windtunnel.launch import Options, run_training
from windtunnel.launch.processes import Crashed
from windtunnel.launch.ranks import STILL_SECONDS, RankFailed, run_ranks
from windtunnel.recipe import UserError, load_recipe
from windtunnel.run import RunFolder, list_runs
from windtunnel.train import train

NewRun = Callable[..., Path]


def strike(folder: Path, rank: int, number: int) -> threading.Thread:
    """Send a signal to a rank of the run once there is a checkpoint."""

    def wait() -> None:
        limit = time.monotonic() + 200
        while not list((folder / "checkpoints").glob("step-????????")) and time.monotonic() < limit:
            time.sleep(0.02)
        for child in psutil.Process().children(recursive=True):
            if child.environ().get("RANK") == str(rank) and str(folder) in child.cmdline():
                os.kill(child.pid, number)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("number", "says"), [(signal.SIGKILL, "was ended by SIGKILL"), (signal.SIGSTOP, "stands still")])
def test_a_rank_that_dies_or_is_stopped_is_named(new_run: NewRun, number: int, says: str) -> None:
    folder = new_run("budget.steps=100000", "bands.overfit_patience=100000", ranks=2, options={"yes": True})
    struck = strike(folder, 1, number)
    with pytest.raises(RankFailed, match=f"rank 1 of 2 {says}") as error:
        run_ranks(folder, 2, as_json=True, output=open(os.devnull, "w"))  # noqa: SIM115
    struck.join()
    assert "after step " in error.value.message
    assert error.value.exit_code == 1
    assert STILL_SECONDS < 60
    assert not [child for child in psutil.Process().children(recursive=True) if str(folder) in child.cmdline()]


@pytest.mark.timeout(300)
def test_what_a_rank_refuses_is_told_as_it_is(new_run: NewRun) -> None:
    folder = new_run("budget.steps=5", ranks=3, options={"yes": True})
    with pytest.raises(UserError, match="planned for 3 ranks and was started with 2"):
        run_ranks(folder, 2, as_json=False, output=open(os.devnull, "w"))  # noqa: SIM115


def test_a_run_killed_before_it_could_say_done_is_finished_by_resuming(new_run: NewRun) -> None:
    folder = new_run("budget.steps=12")
    assert train(folder) == 0
    before = losses(folder)
    with RunFolder.open(folder) as run:
        run.lock()
        run.update(status="running", reason=None, exit_code=None, summary=None)
    assert train(folder) == 0
    manifest = RunFolder.open(folder).manifest
    assert (manifest["status"], manifest["exit_code"], manifest["summary"]["step"]) == ("done", 0, 12)
    assert losses(folder) == before
    with pytest.raises(UserError, match=r"budget\.steps is already spent"):
        train(folder)


def test_an_exception_leaves_a_failed_run_with_all_that_is_known(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise RuntimeError("the device is gone\nand more of it")

    monkeypatch.setattr("windtunnel.train.train", fail)
    with pytest.raises(Crashed, match="training failed: RuntimeError: the device is gone") as error:
        run_training(load_recipe(tiny), Options(root=tmp_path / "runs"), PlainView())
    [run] = list_runs(tmp_path / "runs")
    assert error.value.exit_code == 1
    assert f"windtunnel train --resume --run {run.path}" in (error.value.fix or "")
    assert (run.status, run.reason) == ("failed", error.value.message)
    manifest = RunFolder.open(run.path).manifest
    assert any("RuntimeError: the device is gone" in line for line in manifest["last_lines"])
    assert "Traceback" in (run.path / "output.log").read_text()
    assert (run.path / "report.html").exists()
    assert events(run.path)[-1] == "crash"
    assert "Traceback" not in capsys.readouterr().err


class PlainView:
    """A view that shows nothing."""

    def update(self, snapshot: object) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def test_damaged_metrics_are_told(new_run: NewRun) -> None:
    said: list[str] = []

    class View:
        def update(self, snapshot: object) -> None:
            """Nothing."""

        def say(self, text: str) -> None:
            said.append(text)

    folder = new_run("budget.steps=4")
    folder.joinpath("metrics.sqlite").write_bytes(b"garbage" * 1000)
    assert train(folder, view=View()) == 0
    assert any("metrics were damaged" in line and line.startswith("warn: ") for line in said)
