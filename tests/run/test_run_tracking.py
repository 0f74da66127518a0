"""Metrics handed on to trackers: real packages where they are installed, and a stand-in for what they may do to a run."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from windtunnel.launch import Options, train_run
from windtunnel.recipe import UserError, load_recipe
from windtunnel.run import Event, Metrics, RunFolder, tracking
from windtunnel.run.track_process import STATE, _Feed
from windtunnel.run.trackers import TRACKERS, finite_values, require_trackers


class Recorder:
    """A tracker that remembers, or fails."""

    def __init__(self, *_: Any) -> None:
        self.points: list[tuple[int, dict[str, float]]] = []
        self.told: list[str] = []
        self.status = ""
        self.broken = False

    def log(self, step: int, values: dict[str, float], when: float) -> None:
        if self.broken:
            raise RuntimeError("no network")
        self.points.append((step, dict(values)))

    def flush(self) -> None:
        pass

    def tell(self, event: Event) -> None:
        self.told.append(event.message)

    def end(self, status: str) -> None:
        self.status = status


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setitem(TRACKERS, "wandb", ("json", lambda *_: made))
    return made


def make(root: Path, *trackers: str) -> RunFolder:
    recipe = load_recipe("charlm", ["model.depth=2", f"notify.track=[{', '.join(trackers)}]"])
    return RunFolder.create(root, recipe, rig={}, plan={})


def log(run: RunFolder, first: int, last: int) -> None:
    with Metrics(run.metrics_path) as metrics:
        for step in range(first, last + 1):
            metrics.log(step, {"loss": 3 / step, "odd": float("nan")})


def test_every_point_is_sent_once_and_again_after_going_back(tmp_path: Path, recorder: Recorder) -> None:
    with make(tmp_path, "wandb") as run:
        said: list[str] = []
        feed = _Feed(run.path, "wandb", "project", said.append)
        feed.send()  # nothing there yet
        log(run, 1, 5)
        feed.send()
        feed.send()
        assert recorder.points == [(step, {"loss": 3 / step}) for step in range(1, 6)]
        with Metrics(run.metrics_path) as metrics:
            metrics.log(5, {"validation_loss": 2.0})  # later than the step's other values
            metrics.event("band:gap", 5, "a gap", "warn")
            metrics.event("resumed", 5, "no news")
        _Feed(run.path, "wandb", "project", said.append).send()  # another session knows what was sent
        assert recorder.points[5:] == [(5, {"validation_loss": 2.0})]
        assert recorder.told == ["a gap"]
        with Metrics(run.metrics_path) as metrics:
            metrics.rewind(3)
            metrics.log(4, {"loss": 9.0})
        _Feed(run.path, "wandb", "project", said.append).send()
        with Metrics(run.metrics_path) as metrics:
            metrics.log(5, {"loss": 9.0})
        _Feed(run.path, "wandb", "project", said.append).send()
        assert recorder.points[-1] == (5, {"loss": 9.0})
        assert said == []


def test_a_tracker_that_fails_is_said_once_and_gets_the_rest_later(tmp_path: Path, recorder: Recorder) -> None:
    with make(tmp_path, "wandb") as run:
        said: list[str] = []
        feed = _Feed(run.path, "wandb", "project", said.append)
        log(run, 1, 3)
        recorder.broken = True
        feed.send()
        feed.send()
        assert [text.startswith("warn: wandb: RuntimeError: no network") for text in said] == [True]
        recorder.broken = False
        feed.send()
        assert [step for step, _ in recorder.points] == [1, 2, 3]
        feed.end("done")
        assert recorder.status == "done"


def test_what_is_not_installed_is_named_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRACKERS, "trackio", ("no_such_module_at_all", Recorder))
    with make(tmp_path, "trackio") as run, pytest.raises(UserError, match="trackio is not installed"):
        with tracking(run.path, run.recipe.notify, print):
            raise AssertionError
    with pytest.raises(UserError, match="track"):
        load_recipe("charlm", ["notify.track=[tensorboard]"])
    assert finite_values({"a": 1.0, "b": float("nan"), "c": float("inf")}) == {"a": 1.0}


class Quiet:
    """Show nothing."""

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


def test_a_tracker_that_is_not_installed_leaves_no_failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRACKERS, "trackio", ("no_such_module_at_all", Recorder))
    with pytest.raises(UserError, match="trackio is not installed"):
        train_run(load_recipe("charlm", ["notify.track=[trackio]"]), Options(root=tmp_path / "runs"), Quiet())  # type: ignore[arg-type]
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_the_real_package_keeps_what_was_logged(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        require_trackers([name])
    except UserError:
        pytest.skip(f"{name} is not installed")
    for variable in ("WANDB_API_KEY", "WANDB_MODE", "MLFLOW_TRACKING_URI", "TRACKIO_SPACE_ID"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    said: list[str] = []
    run = make(tmp_path / "runs", name)
    for first, last in ((1, 40), (41, 60)):  # a run that was stopped goes on
        with tracking(run.path, run.recipe.notify, said.append):
            log(run, first, last)
            run.finish("done", "steps")
    run.close()
    assert not [text for text in said if text.startswith("warn")], said
    assert json.loads((run.path / STATE).read_text())[name]["steps"]["loss"] == 60
    steps = {"wandb": _wandb, "mlflow": _mlflow, "trackio": _trackio}[name](tmp_path, run.path)
    assert steps == {step: pytest.approx(3 / step) for step in range(1, 61)}


def _wandb(root: Path, folder: Path) -> dict[int, float]:
    from wandb.proto import wandb_internal_pb2

    found = {}
    for path in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        for data in _records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            values = {(item.key or ".".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item}
            if "loss" in values:
                found[int(values["step"])] = float(values["loss"])
    return found


def _records(data: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's format, after its seven bytes of header."""
    place, parts, block = 7, b"", 32_768
    while place + 7 <= len(data):
        if block - place % block < 7:
            place += block - place % block
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def _mlflow(root: Path, folder: Path) -> dict[int, float]:
    with sqlite3.connect(root / "runs" / "mlflow.db") as database:
        rows = database.execute("SELECT step, value FROM metrics WHERE key = 'loss'").fetchall()
        assert database.execute("SELECT status, name FROM runs").fetchall() == [("FINISHED", folder.name)]
    assert len(rows) == 60
    return dict(rows)


def _trackio(root: Path, folder: Path) -> dict[int, float]:
    with sqlite3.connect(root / "trackio" / "windtunnel.db") as database:
        rows = database.execute("SELECT step, metrics FROM metrics WHERE run_name = ?", (folder.name,)).fetchall()
    return {step: json.loads(text)["loss"] for step, text in rows if "loss" in json.loads(text)}
