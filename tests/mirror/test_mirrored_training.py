"""Training with a mirror as a user starts it: killed, gone on with elsewhere from the store, and the store failing meanwhile."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from s3_server import KEYS, Tap, environment, make_bucket, s3_server
from waiting import until

from windtunnel.checkpoint import CheckpointStore
from windtunnel.mirror import STATE
from windtunnel.run import NOTICE_VARIABLE, MetricsReader, load_spent, too_late

pytestmark = pytest.mark.end_to_end

ENDLESS = """
extends: charlm
name: endless
model: {depth: 2, aspect: 16, head_dim: 16, sequence: 32}
data: {corpus: {kind: arithmetic, documents: 4000, digits: 1, terms: 2}, validation: 0.05}
stages:
  pretrain: {batch_tokens: 512, micro_batch: 8, validate_every: 1000000 steps, validation_tokens: 2048}
budget: {hours: null, steps: 1000000}
checkpoints: {every: 20 steps, keep_last: 3, keep_hourly: false, mirror: "s3://runs/mine"}
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "endless.yaml").write_text(ENDLESS)
    return tmp_path


@pytest.fixture
def tap() -> Iterator[Tap]:
    with s3_server() as port:
        tap = Tap(port)
        tap.start()
        make_bucket(tap.url, "runs")
        yield tap


@pytest.fixture
def start(place: Path, tap: Tap) -> Iterator[Start]:
    """start('machine', 'argument', ...) trains as on a machine of that name, with its own folder; ended with the test."""
    begun = []

    def train(machine: str, *arguments: str) -> "subprocess.Popen[str]":
        own = {"WINDTUNNEL_CACHE": str(place / machine / "cache"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "windtunnel", "train", *arguments, "--yes", "--root", str(place / machine / "runs")]
        process = subprocess.Popen(
            command, cwd=place, env={**os.environ, **own, **environment(tap.url)}, text=True, start_new_session=True,
            stdout=open(place / f"{machine}.out", "w"), stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,  # noqa: SIM115
        )  # fmt: skip
        begun.append(process)
        return process

    yield train
    for process in begun:
        kill_tree(process)


def kill_tree(process: "subprocess.Popen[str]") -> None:
    """SIGKILL a command and all that it started, as when a machine is taken away."""
    with contextlib.suppress(psutil.NoSuchProcess):
        tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for one in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGSTOP)  # none must see another's end
        for one in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
    process.wait(120)


def run_of(root: Path) -> Path:
    until(lambda: list(root.glob("runs/endless-*/manifest.json")), f"no run in {root}")
    return next(root.glob("runs/endless-*/manifest.json")).parent


def mirrored(run: Path) -> int:
    """The step that the mirror has come to, as the run's folder tells."""
    with contextlib.suppress(OSError, ValueError):
        return int(json.loads((run / STATE).read_text()).get("step") or 0)
    return 0


def losses(run: Path) -> dict[int, float]:
    with MetricsReader(run / "metrics.sqlite") as reader:
        return {point.step: point.value for point in reader.series("loss")}


def cpu_seconds(process: "subprocess.Popen[str]") -> float:
    """What a process and those that it started have computed so far; the test fails where it has ended."""
    assert process.poll() is None, "it has ended"
    found = 0.0
    for one in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += one.cpu_times().user
    return found


def log_of(run: Path) -> str:
    return (run / "output.log").read_text()


@pytest.mark.timeout(900)
def test_a_run_goes_on_from_its_mirror_with_the_same_bits_and_a_failing_store_costs_nothing(
    place: Path, tap: Tap, start: Start
) -> None:
    # The first machine vanishes.
    first = start("first", "endless.yaml")
    here = run_of(place / "first")
    until(lambda: mirrored(here) >= 40, "nothing is mirrored")
    reached = mirrored(here)
    until(lambda: max(losses(here)) > reached + 25, "it does not train on")
    kill_tree(first)
    # A second one has nothing but the recipe, and the same command finds the run. Its connection is cut while it trains.
    second = start("second", "endless.yaml", "--restartable")
    there = run_of(place / "second")
    until(lambda: mirrored(there) > reached, "the second machine mirrors nothing")
    tap.turn("cut")
    until(lambda: "the mirror lags behind" in log_of(there), "nobody says that the store is gone")
    then = max(losses(there))
    until(lambda: max(losses(there)) > then + 100, "training stands still without its store")
    tap.turn("open")
    until(lambda: "answers again" in log_of(there), "the mirror does not recover")
    # A third one is refused: the second lives.
    third = start("third", "--resume", f"s3://runs/mine/{here.name}")
    _, told = third.communicate(timeout=300)
    assert third.returncode == 2
    assert "is in use" in told
    # The second is stopped: all of it is in the mirror, and the same bits as the first machine had.
    second.send_signal(signal.SIGTERM)
    _, said = second.communicate(timeout=300)
    assert second.returncode == 3, said
    assert "all of this run is in s3://runs/mine" in log_of(there)
    newest = CheckpointStore(there / "checkpoints").newest_good(with_optimizer=True)
    assert newest is not None
    assert mirrored(there) == newest.step
    own, other = losses(here), losses(there)
    assert max(other) > max(own)
    assert {step: other[step] for step in own} == own
    # What the lost machine had spent counts; no file anywhere has a secret.
    assert load_spent(there / "spent.json").seconds > load_spent(here / "spent.json").seconds
    texts = [path.read_bytes() for run in (here, there) for path in run.rglob("*") if path.is_file()]
    assert not any(value.encode() in text for text in texts for value in KEYS.values())


@pytest.mark.timeout(900)
def test_the_address_alone_is_enough_on_a_new_machine(place: Path, start: Start) -> None:
    first = start("first", "endless.yaml")
    here = run_of(place / "first")
    until(lambda: mirrored(here) >= 40, "nothing is mirrored")
    reached = mirrored(here)
    until(lambda: max(losses(here)) > reached + 25, "it does not train on")
    kill_tree(first)
    (place / "endless.yaml").unlink()  # the new machine has not even the recipe
    second = start("second", "--resume", f"s3://runs/mine/{here.name}")
    there = run_of(place / "second")
    assert there.name == here.name
    own = losses(here)
    until(lambda: max(losses(there)) > max(own), "it does not go on")
    second.send_signal(signal.SIGTERM)
    _, said = second.communicate(timeout=300)
    assert second.returncode == 3, said
    other = losses(there)
    assert {step: other[step] for step in own} == own
    # It went on, and did not begin anew: steps before the checkpoint were not taken again.
    with MetricsReader(there / "metrics.sqlite") as reader:
        assert next(event.step or 0 for event in reader.events() if event.kind == "resumed") >= reached


@pytest.mark.timeout(900)
def test_whatever_a_store_does_training_goes_on_and_says_so(place: Path, tap: Tap, start: Start) -> None:
    process = start("first", "endless.yaml")
    run = run_of(place / "first")
    until(lambda: mirrored(run) >= 20, "nothing is mirrored")
    for how, words in (
        ("refused", "Access Denied"),
        ("expired", "token has expired"),
        ("full", "the disk or quota there is full"),
        ("slow", "is slow: step"),
    ):
        heard, then, reached = len(log_of(run)), max(losses(run)), mirrored(run)
        tap.turn(how)
        until(lambda: words in log_of(run)[heard:], f"nobody says that the store is {how}")  # noqa: B023  (waited for here)
        until(lambda: max(losses(run)) > then + 50, f"training stands still while the store is {how}")  # noqa: B023
        assert process.poll() is None
        tap.turn("open")
        until(lambda: "again; " in log_of(run)[heard:], f"the mirror does not recover from a store that was {how}")  # noqa: B023
        until(lambda: mirrored(run) > reached, "nothing more is mirrored")  # noqa: B023
    assert "the mirror lags behind" in log_of(run)


@pytest.mark.timeout(900)
def test_a_notice_that_is_too_short_for_the_measured_line_is_told_while_it_trains(
    place: Path, tap: Tap, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    assert too_late(60.0, "aws") is None
    assert too_late(60.0, "") is None
    monkeypatch.setenv(NOTICE_VARIABLE, "runpod")
    # One checkpoint a pass: several on their way at once are each as fast as all of them.
    sets = [item for each in ("keep_last=1", "every=50 steps") for item in ("--set", f"checkpoints.{each}")]
    process = start("first", "endless.yaml", *sets)
    run = run_of(place / "first")
    until(lambda: mirrored(run) >= 50, "nothing is mirrored")
    tap.pause = 0.6
    tap.turn("slow")
    until(lambda: "runpod gives 5 s notice, and a checkpoint needs about" in log_of(run), "nobody warns")
    then = mirrored(run)
    tap.turn("open")
    until(lambda: mirrored(run) > then, "nothing more is mirrored")
    assert log_of(run).count("s notice, and") == 1, "it is told once"
    assert process.poll() is None


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own of 48 MiB, for a machine called `small`."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "none", folder], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("a file system can be mounted by root only")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.timeout(900)
def test_a_full_disk_under_the_run_costs_checkpoints_and_neither_steps_nor_metrics(
    small_disk: Path, place: Path, start: Start
) -> None:  # fmt: skip
    process = start("small", "endless.yaml")
    run = run_of(small_disk)
    until(lambda: mirrored(run) >= 20, "nothing is mirrored")
    filler = small_disk / "filler"
    with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 12))
    said = place / "small.out"
    until(lambda: "the checkpoint needs" in said.read_text(), "nobody says that the disk is full")
    assert f"the disk of {run / 'checkpoints'} has " in said.read_text()
    assert "free space, or keep fewer" in said.read_text()
    full, worked = time.time(), cpu_seconds(process)
    until(lambda: cpu_seconds(process) > worked + 5.0, "training stands still")
    freed, then = time.time(), max(losses(run))
    filler.unlink()
    until(lambda: max(losses(run)) > then + 20, "metrics are not written again")
    process.send_signal(signal.SIGTERM)
    _, problems = process.communicate(timeout=300)
    assert process.returncode == 3, problems
    with MetricsReader(run / "metrics.sqlite") as reader:
        points = reader.series("loss")
    # Steps that were taken while nothing could be written are there with the others.
    assert [point.step for point in points] == list(range(1, len(points) + 1))
    assert sum(full < point.time < freed for point in points) > 20
    newest = CheckpointStore(run / "checkpoints").newest_good(with_optimizer=True)
    assert newest is not None
    assert mirrored(run) == newest.step == max(losses(run))


def test_a_bucket_that_is_not_there_is_refused_before_training(place: Path, tap: Tap, start: Start) -> None:
    process = start("first", "endless.yaml", "--set", "checkpoints.mirror=s3://nobodys/runs")
    _, said = process.communicate(timeout=300)
    assert process.returncode == 2
    assert "there is no such bucket" in said
    assert not list((place / "first").glob("runs/*/metrics.sqlite"))  # no step was taken
