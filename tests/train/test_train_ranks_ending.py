"""Ranks that die or stand still, and runs whose last session could not say how it ended."""

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest
from conftest import events, losses
from faulty_ranks import plant

from windtunnel.checkpoint import Checkpoint, CheckpointStore
from windtunnel.launch import Options, ranks, stacks, train_run
from windtunnel.launch.processes import Crashed
from windtunnel.launch.ranks import RankFailed, run_ranks
from windtunnel.recipe import UserError, load_recipe
from windtunnel.run import WAITING, RunFolder, heartbeat, list_runs
from windtunnel.train import train

pytestmark = pytest.mark.end_to_end

NewRun = Callable[..., Path]


def strike(folder: Path, struck: Sequence[int], number: int) -> threading.Thread:
    """Send a signal to ranks of the run once there is a checkpoint."""

    def wait() -> None:
        limit = time.monotonic() + 200
        while not list((folder / "checkpoints").glob("step-????????")) and time.monotonic() < limit:
            time.sleep(0.02)
        for child in psutil.Process().children(recursive=True):
            if child.environ().get("RANK") in map(str, struck) and str(folder) in child.cmdline():
                os.kill(child.pid, number)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def run(folder: Path) -> None:
    """Train the run on its two ranks, as `windtunnel train` does."""
    with open(os.devnull, "w") as nowhere:
        run_ranks(folder, 2, as_json=True, output=nowhere)
    assert not alive(folder)


def alive(folder: Path) -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if str(folder) in child.cmdline()]


def newest(folder: Path, *, whole: bool = True) -> Checkpoint:
    found = CheckpointStore(folder / "checkpoints").newest_good(with_optimizer=whole)
    assert found is not None
    return found


@pytest.mark.timeout(400)
def test_a_killed_rank_is_named_and_the_weights_are_saved(
    new_run: NewRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path / "fault", monkeypatch, "dies", rank=1, step=12)
    folder = new_run("budget.steps=15", ranks=2, options={"yes": True})
    with pytest.raises(RankFailed, match="rank 1 of 2 was ended by SIGKILL") as error:
        run(folder)
    assert error.value.exit_code == 1
    # Its part of the optimizer's states went with it; the weights are on every rank.
    assert " after step 11, while training; the state after step 11 could not be saved: its weights" in error.value.message
    assert newest(folder, whole=False).step == 11
    assert newest(folder).step == 7


@pytest.mark.timeout(400)
@pytest.mark.parametrize("which", [[1], [0, 1]])
def test_ranks_that_were_stopped_are_named_continued_and_the_run_saved(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch, which: list[int]
) -> None:
    assert ranks.STILL_SECONDS + ranks.ENDS_SECONDS <= 60
    monkeypatch.setattr(ranks, "STILL_SECONDS", 4.0)
    folder = new_run("budget.steps=100000", "bands.overfit_patience=100000", ranks=2, options={"yes": True})
    struck = strike(folder, which, signal.SIGSTOP)
    run(folder)
    struck.join()
    manifest = RunFolder.open(folder).manifest
    assert (manifest["status"], manifest["exit_code"]) == ("stopped", 3)
    assert f"rank {which[0]} of 2 stood still for 4 s, in " in manifest["reason"]
    for rank in which:
        assert rank == which[0] or f"; so did rank {rank}, in " in manifest["reason"]
        told = (folder / "stacks.txt").read_text().partition(f"rank {rank}: ")[2]
        assert "(most recent call first)" in told  # "Current thread" too, where it held Python's lock just then
    assert newest(folder).step == max(losses(folder))


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("fault", "rank"), [("sleeps", 1), ("deadlocks", 0)])
def test_a_rank_that_hangs_is_named_with_its_stack_and_the_last_state_is_saved(
    new_run: NewRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, rank: int
) -> None:
    assert heartbeat.LEAST_SECONDS + ranks.AGAIN_SECONDS + stacks.ANSWER_SECONDS < 60
    plant(tmp_path / "fault", monkeypatch, fault, rank=rank, step=12, least=5.0)
    monkeypatch.setattr(ranks, "AGAIN_SECONDS", 1.0)
    whole, folder = new_run("budget.steps=15"), new_run("budget.steps=15", ranks=2, options={"yes": True})
    with pytest.raises(RankFailed, match=f"rank {rank} of 2 hangs: no sign of life") as error:
        run(folder)
    assert "after step 11, while training" in error.value.message
    assert "sitecustomize.py:" in error.value.message
    assert error.value.message.endswith("; the state after step 11 is saved")
    text = (folder / "stacks.txt").read_text()
    assert "rank 0: training" in text
    assert "sitecustomize.py" in text.partition(f"rank {rank}: ")[2]
    assert newest(folder).step == 11
    if rank == 0:
        return
    monkeypatch.delenv("PYTHONPATH")
    run(folder)
    assert train(whole) == 0
    alone, together = losses(whole), losses(folder)
    assert max(abs(alone[s] - together[s]) for s in alone) < 2e-4


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("fault", "saved"), [("forward", 11), ("update", 7)])
def test_memory_that_runs_out_on_one_rank_is_one_line_and_the_last_good_state(
    new_run: NewRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, saved: int
) -> None:
    plant(tmp_path / "fault", monkeypatch, fault, rank=1, step=12)
    folder = new_run("budget.steps=15", ranks=2, options={"yes": True})
    with pytest.raises(UserError, match=r"out of memory in step 12 .*on rank 1") as error:
        run(folder)
    assert error.value.exit_code == 1
    assert "\n" not in error.value.message
    assert f": windtunnel train --resume --run {folder} --set stages.pretrain.micro_batch=2" in (error.value.fix or "")
    assert newest(folder).step == saved
    if fault == "forward":
        assert error.value.message.endswith("; the state after step 11 is saved")


def test_slow_steps_are_no_hang() -> None:
    beats = heartbeat.Heartbeat(0)
    assert beats.limit("training") == heartbeat.FIRST_SECONDS
    beats._took["training"].extend([0.1, 30.0, 0.1])
    assert beats.limit("training") == 150.0
    beats._took["training"].extend([0.1] * 200)
    assert beats.limit("training") == heartbeat.LEAST_SECONDS
    assert beats.limit(WAITING) > 1e9


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
        train_run(load_recipe(tiny), Options(root=tmp_path / "runs"), PlainView())
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

    class Remembering:
        def update(self, snapshot: object) -> None:
            """Nothing."""

        def say(self, text: str) -> None:
            said.append(text)

        def close(self) -> None:
            """Nothing."""

    folder = new_run("budget.steps=4")
    folder.joinpath("metrics.sqlite").write_bytes(b"garbage" * 1000)
    assert train(folder, view=Remembering()) == 0
    assert any("metrics were damaged" in line and line.startswith("warn: ") for line in said)
