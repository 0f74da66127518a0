"""Training as a user starts it: signals, lost terminals, closed pipes, kills; detached, stopped, looked at from elsewhere."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from windtunnel.checkpoint import CheckpointStore
from windtunnel.launch.supervisor import memory_kills
from windtunnel.run import MetricsReader, ProcessId, RunFolder, holder, list_runs

pytestmark = pytest.mark.end_to_end

TINY = """
extends: charlm
name: tiny
model: {depth: 2, aspect: 16, head_dim: 16, sequence: 32}
data: {corpus: {kind: arithmetic, documents: 4000, digits: 1, terms: 2}, validation: 0.05}
stages:
  pretrain: {batch_tokens: 512, micro_batch: 8, validate_every: 30 steps, validation_tokens: 4096}
budget: {hours: null, steps: 120}
checkpoints: {every: 10 steps, keep_last: 20}
"""
WINDTUNNEL = [sys.executable, "-m", "windtunnel"]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recipe, and one with the data."""
    folder = tmp_path_factory.mktemp("supervised")
    (folder / "tiny.yaml").write_text(TINY)
    return folder


@pytest.fixture
def start(place: Path) -> Iterator[Start]:
    """start('root', 'argument', ..., **popen) starts a training that is ended with the test."""
    begun = []

    def train(root: str, *arguments: str, shell: str = "", **popen: object) -> "subprocess.Popen[str]":
        command = [*WINDTUNNEL, "train", *(arguments or ("tiny.yaml",)), "--yes", "--root", root]
        environment = {**os.environ, "WINDTUNNEL_CACHE": str(place / "cache"), "OMP_NUM_THREADS": "1", **popen.pop("env", {})}  # type: ignore[dict-item]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL} | popen
        line = f"{' '.join(command)} {shell}"
        process = subprocess.Popen(
            ["bash", "-c", line] if shell else command, cwd=place, env=environment, text=True, start_new_session=True,
            # A shell starts what it puts into the background with SIGINT ignored, and these tests may run there.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **streams,  # type: ignore[call-overload]
        )  # fmt: skip
        begun.append(process)
        return process

    yield train
    for process in begun:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(120)


def run_in(root: Path) -> Path:
    """The only run of a root, once it has a checkpoint."""
    limit = time.monotonic() + 120
    while time.monotonic() < limit:
        found = [path.parents[1] for path in root.glob("*/checkpoints/step-????????")]
        if found:
            return found[0]
        time.sleep(0.05)
    raise AssertionError(f"no checkpoint under {root}: {[p.read_text() for p in root.glob('*/output.log')]}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_who_is_told_to_stop_before_there_is_anything_to_save_ends_with_3(
    place: Path, start: Start, number: signal.Signals
) -> None:
    process = start("early", stderr=subprocess.STDOUT)
    assert process.stdout is not None
    before = process.stdout.readline()  # of the plan, before ranks are started
    process.send_signal(number)
    after = process.stdout.read()
    assert process.wait() == 3, before + after
    saved = list((place / "early").glob("*/checkpoints/step-????????"))
    assert saved or f"{number.name}: ended before there was anything to save" in after


@contextlib.contextmanager
def held(run: Path) -> Iterator[ProcessId]:
    """Keep a run's trainer where it is: however slow this process gets, the run is not over before the block is."""
    trainer = holder(run)
    assert trainer is not None
    trainer.send(signal.SIGSTOP)
    try:
        yield trainer
    finally:
        trainer.send(signal.SIGCONT)


def losses(run: Path) -> dict[int, float]:
    with MetricsReader(run / "metrics.sqlite") as reader:
        return {point.step: point.value for point in reader.series("loss")}


def saved(run: Path) -> int:
    """The step of the newest good checkpoint."""
    newest = CheckpointStore(run / "checkpoints").newest_good(with_optimizer=True)
    return newest.step if newest else 0


@pytest.fixture(scope="module")
def whole(place: Path) -> dict[int, float]:
    """Losses of a run that nothing happens to, whose standard output is full and whose terminal is lost."""
    with open("/dev/full", "w") as full:
        process = subprocess.Popen(
            [*WINDTUNNEL, "train", "tiny.yaml", "--yes", "--root", "whole"], cwd=place, stdout=full, stderr=full,
            env={**os.environ, "WINDTUNNEL_CACHE": str(place / "cache"), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        run = run_in(place / "whole")
        process.send_signal(signal.SIGHUP)
        assert process.wait(240) == 0
    assert RunFolder.open(run).manifest["status"] == "done"
    assert "step 120/120 (100 %)" in (run / "output.log").read_text()
    return losses(run)


@pytest.mark.timeout(400)
def test_a_stop_signal_saves_and_a_reader_that_leaves_costs_nothing(place: Path, start: Start, whole: dict[int, float]) -> None:
    process = start("warned", shell="| head -1")
    run = run_in(place / "warned")
    with held(run):
        time.sleep(0.5)  # the pipe has no reader by now
        os.killpg(process.pid, signal.SIGUSR1)  # as Slurm warns every process of a job
    out, _ = process.communicate(timeout=120)
    assert out.count("\n") == 1
    manifest = RunFolder.open(run).manifest
    assert (manifest["status"], manifest["reason"], manifest["exit_code"]) == ("stopped", "SIGUSR1", 3)
    assert saved(run) == max(losses(run))
    # It goes on with nothing but its folder, with standard output closed and an encoding that lacks most signs.
    again = start("warned", "--resume", shell=">&- 2>&-", env={"PYTHONIOENCODING": "latin-1"})
    assert again.wait(240) == 0
    assert losses(run) == whole


@pytest.mark.timeout(400)
def test_the_exit_code_says_that_a_signal_stopped_the_run(place: Path, start: Start) -> None:
    process = start("signal", "tiny.yaml", "--set", "budget.steps=100000", "--set", "bands.overfit_patience=100000")
    run = run_in(place / "signal")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 3, errors
    assert "Traceback" not in errors
    assert saved(run) == max(losses(run))


@pytest.mark.timeout(400)
def test_a_killed_process_leaves_a_failed_run_with_cause_lines_report_and_event(
    place: Path, start: Start, whole: dict[int, float]
) -> None:
    process = start("killed")
    run = run_in(place / "killed")
    with held(run) as trainer:
        assert trainer.pid != process.pid
        trainer.send(signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert re.match(r"error: (the process|rank 0 of 1) was ended by SIGKILL", errors)
    assert f"windtunnel train --resume --run {Path('killed') / run.name}" in errors
    assert "--set stages.pretrain.micro_batch=4" in errors, "memory may have been the reason"
    manifest = RunFolder.open(run).manifest
    assert manifest["status"] == "failed"
    assert "SIGKILL" in manifest["reason"]
    assert any("training: step" in line for line in manifest["last_lines"])
    with MetricsReader(run / "metrics.sqlite") as reader:
        assert [event.kind for event in reader.events()][-1] == "crash"
    assert "SIGKILL" in (run / "report.html").read_text()
    [listed] = list_runs(place / "killed")
    assert listed.status == "failed"
    assert start("killed", "--resume", "--run", run.name).wait(240) == 0
    assert losses(run) == whole


@pytest.mark.timeout(400)
def test_a_detached_run_is_found_followed_and_stopped_from_another_shell(place: Path, start: Start) -> None:
    process = start("detached", "tiny.yaml", "--detach", "--set", "budget.steps=100000", "--set", "bands.overfit_patience=100000")
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    run = run_in(place / "detached")
    for verb in ("watch", "logs", "stop"):
        assert f"windtunnel {verb} detached/{run.name}" in out
    os.killpg(process.pid, 0) if process.poll() is None else None
    follower = subprocess.Popen([*WINDTUNNEL, "logs", str(run), "-f"], stdout=subprocess.PIPE, text=True)
    done = subprocess.run([*WINDTUNNEL, "stop", str(run), "--json"], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["status"] == "stopped"
    assert told["reason"].startswith("windtunnel stop, by ")
    assert told["step"] == saved(run) > 0
    followed, _ = follower.communicate(timeout=60)
    assert "stopped after" in followed
    assert holder(run) is None
    again = subprocess.run([*WINDTUNNEL, "stop", str(run)], capture_output=True, text=True, check=False, timeout=60)
    assert again.returncode == 0
    assert "stopped" in again.stdout


@pytest.mark.timeout(400)
def test_a_run_whose_folder_cannot_be_written_is_stopped_by_a_signal(place: Path, start: Start) -> None:
    process = start("full", "tiny.yaml", "--set", "budget.steps=100000", "--set", "bands.overfit_patience=100000")
    run = run_in(place / "full")
    (run / "stop").mkdir()  # in the request's place, which fails as on a full disk
    done = subprocess.run([*WINDTUNNEL, "stop", str(run), "--json"], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"run folder {run} cannot be written: Is a directory" in done.stderr
    told = json.loads(done.stdout)
    assert (told["status"], told["reason"]) == ("stopped", "SIGTERM")
    assert told["step"] == saved(run) > 0
    assert process.wait(60) == 3


@pytest.mark.timeout(400)
def test_a_run_whose_folder_is_moved_trains_on_in_it(place: Path, start: Start, whole: dict[int, float]) -> None:
    process = start("moving", "tiny.yaml", "--json")
    run = run_in(place / "moving")
    with held(run):
        run.rename(place / "moving" / "elsewhere")
    out, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert "the run's folder was moved to" in errors
    for line in out.splitlines():
        json.loads(line, parse_constant=pytest.fail)
    [moved] = list_runs(place / "moving")
    assert (moved.path.name, moved.status, moved.step) == ("elsewhere", "done", 120)
    assert losses(moved.path) == whole


@pytest.mark.timeout(400)
def test_a_refusal_is_told_once_by_a_detached_command_too(start: Start) -> None:
    process = start("refused", "tiny.yaml", "--detach", "--set", "data.corpus={kind: text, files: [none.txt]}")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert errors.count("error: ") == 1
    assert "Traceback" not in errors


@pytest.mark.timeout(400)
def test_a_detached_command_waits_until_nothing_refuses_to_train(place: Path, start: Start) -> None:
    assert start("spent", "tiny.yaml", "--set", "budget.steps=12").wait(240) == 0
    process = start("spent", "--resume", "--detach", "--set", "budget.steps=5")
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 2, (out, errors)
    assert "trains on without this terminal" not in out
    assert errors.count("error: budget.steps is already spent: the run has done 12 steps of 5") == 1
    [run] = list_runs(place / "spent")
    assert (run.status, run.step) == ("done", 12)


def test_who_is_told_again_after_it_has_saved_was_stopped_all_the_same(place: Path, start: Start) -> None:
    """As under Slurm: a warning signal first, SIGTERM while the process is on its way out."""
    process = start("twice", "tiny.yaml", "--set", "budget.steps=1000000")
    run = run_in(place / "twice")
    process.send_signal(signal.SIGUSR1)
    limit = time.monotonic() + 120
    while RunFolder.open(run).manifest["status"] == "running" and time.monotonic() < limit:
        time.sleep(0.01)
    while process.poll() is None and time.monotonic() < limit:
        process.send_signal(signal.SIGTERM)
        time.sleep(0.02)
    assert process.returncode == 3, process.communicate()
    assert RunFolder.open(run).manifest["status"] == "stopped"
    assert saved(run) == max(losses(run))


@pytest.mark.parametrize(
    ("groups", "counts"),
    [
        ("0::/jobs/mine\n", "jobs/mine/memory.events"),
        ("0::/jobs/mine\n", "jobs/memory.events"),
        ("4:memory:/jobs/mine\n3:cpuset:/\n0::/\n", "memory/jobs/mine/memory.oom_control"),
        ("4:memory:/elsewhere/outside\n0::/\n", "memory/memory.oom_control"),
    ],
)
def test_what_the_kernel_killed_for_memory_is_counted_in_both_versions_of_control_groups(
    tmp_path: Path, groups: str, counts: str
) -> None:
    (tmp_path / "groups").write_text(groups)
    file = tmp_path / "mount" / counts
    file.parent.mkdir(parents=True)
    file.write_text("under_oom 0\noom_kill 2\n")
    assert memory_kills(tmp_path / "groups", tmp_path / "mount") == 2
    assert memory_kills(tmp_path / "none", tmp_path / "mount") == 0
