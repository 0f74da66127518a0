"""A run looked at and stopped through its mirror alone, with the verbs that a user has, against a real S3 server and a folder."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from s3_server import Tap
from waiting import until

from windtunnel.cli import main
from windtunnel.mirror import Keeper, Lease, Mirror, Place, Store, ask_to_stop, is_trained, look, runs_in
from windtunnel.recipe import load_recipe
from windtunnel.run import STOP_FILE, Metrics, RunFolder

JOB = "s3://runs/job"


@dataclass
class Trained:
    """A run that is mirrored, as by a process that trains it. Attributes: run: its folder. url: of its mirror."""

    run: Path
    url: str
    lease: Lease
    keeper: Keeper
    mirror: Mirror

    def end(self) -> None:
        """Let the mirror go, as that process does in the end."""
        self.keeper.close()
        self.mirror.sync()
        self.lease.release()


@pytest.fixture
def trained(tap: Tap, tmp_path: Path) -> Iterator[Trained]:
    with RunFolder.create(tmp_path / "there", load_recipe("charlm"), rig={"name": "here"}) as run:
        with Metrics(run.metrics_path) as metrics:
            metrics.log(7, {"loss": 2.0, "dollars": 1.25})
        (run.path / "output.log").write_text("first\nsecond\n")
        (run.path / "checkpoints" / "step-00000005").mkdir(parents=True)
        store = Store(Place.parse(f"{JOB}/{run.path.name}"))
        lease = Lease.acquire(store, print, seconds=5.0)
        keeper = Keeper(lease, run.path, seconds=0.8)
        mirror = Mirror(run.path, store, lease, keeper)
        mirror.sync()
        yield Trained(run.path, f"{JOB}/{run.path.name}", lease, keeper, mirror)
        keeper.close()
        with contextlib.suppress(Exception):
            for key in store.sizes(""):
                store.delete(key)


def say(*arguments: str) -> int:
    """Run a verb; returns its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def test_what_tells_of_a_run_comes_without_its_weights(trained: Trained, tmp_path: Path) -> None:
    run, url = trained.run, trained.url
    assert runs_in(JOB) == [run.name]
    assert runs_in(url) == [""]
    copy = look(url, tmp_path / "here")
    assert (copy / "manifest.json").read_bytes() == (run / "manifest.json").read_bytes()
    assert not list(copy.rglob("*.distcp"))


def test_status_and_log_are_had_through_the_store(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    url = trained.url
    assert say("launch", "--status", "--to", JOB, "--json") == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["path"], told["status"], told["step"], told["dollars"]) == (url, "running", 7, 1.25)
    for address in (JOB, url):  # the only run of a job need not be named
        assert say("logs", address, "--lines", "1") == 0
        assert capsys.readouterr().out == "second\n"
    trained.end()
    assert say("launch", "--status", "--to", url, "--json") == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["status"], told["lost"]) == ("failed", True)
    assert not is_trained(url)


def test_whoever_trains_is_asked_to_stop_and_nobody_else(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    run, url = trained.run, trained.url

    def train() -> None:
        until((run / STOP_FILE).exists, "nobody is asked")
        RunFolder.open(run).finish("stopped", (run / STOP_FILE).read_text().strip())
        trained.end()

    trainer = threading.Thread(target=train, daemon=True)
    trainer.start()
    assert say("stop", url, "--wait", "60") == 0
    trainer.join()
    out = capsys.readouterr().out
    assert "stopped after 7 steps: windtunnel stop, by " in out
    # A request that came too late is not one to the machine that goes on later.
    (run / STOP_FILE).unlink()
    Store(Place.parse(url)).put("stop.json", json.dumps({"token": trained.lease.token, "text": "late"}).encode())
    after = Lease.acquire(Store(Place.parse(url)), print, seconds=5.0)
    assert after.asked_to_stop() is None
    after.release()
    assert ask_to_stop(url, "me", print, seconds=1.0)  # has ended already


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["launch", "charlm", "--to", "s3://runs/job"], "a mirror is no machine"),
        (["launch", "--status", "--to", "runpod"], "asked through its mirror"),
        (["stop", "s3://runs/job", "--kill"], "ends a process of this machine"),
        (["logs", "s3://runs/job", "--list"], "only the run's own log"),
        (["logs", "s3://runs/nothing-here"], "holds no run"),
        (["fetch-run", "s3://runs/nothing-here"], "holds no run"),
    ],
)
def test_what_cannot_be_done_is_refused(tap: Tap, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert say(*arguments) == 2
    assert said in capsys.readouterr().err
