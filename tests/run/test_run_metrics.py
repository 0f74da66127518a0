"""Metrics: never in the way of the step loop, readable while written, sound after kills and damage."""

import contextlib
import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from waiting import HANG

from windtunnel.recipe import UserError
from windtunnel.run import Metrics, MetricsReader, Room, stretches
from windtunnel.run import metrics as metrics_module
from windtunnel.run.database import SLACK
from windtunnel.run.tensorboard import TensorBoard


def logged(metrics: Metrics) -> MetricsReader:
    """Return what reads the points logged so far, all of them."""
    metrics.flush()
    return MetricsReader(metrics.path)


def test_a_run_that_makes_its_tables_this_moment_is_not_taken_for_damaged(tmp_path: Path) -> None:
    path = tmp_path / "m.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode=WAL")  # the file is there, its tables are not

    def begin() -> None:
        Metrics(path).close()

    begun = threading.Timer(0.2, begin)
    begun.start()
    with MetricsReader(path) as reader:
        assert reader.names() == []
    begun.join()


def test_series_latest_names_and_events(tmp_path: Path) -> None:
    with Metrics(tmp_path / "m.sqlite") as metrics:
        for step in range(5):
            metrics.log(step, {"loss": 5.0 - step, "nan": math.nan, "inf": math.inf})
        metrics.log(2, {"loss": 9.0})
        metrics.event("checkpoint", 3, "saved", data={"path": "x"})
        metrics.event("band", 4, "spike", "bad")
        reader = logged(metrics)
        assert [(p.step, p.value) for p in reader.series("loss")] == [(0, 5), (1, 4), (2, 9), (3, 2), (4, 1)]
        assert [p.step for p in reader.series("loss", since=2)] == [3, 4]
        assert math.isnan(reader.series("nan")[0].value)
        assert reader.series("inf")[0].value == math.inf
        assert reader.names() == ["inf", "loss", "nan"]
        assert reader.latest()["loss"][:2] == (4, 1.0)
        assert reader.series("never") == []
        assert [(e.kind, e.level, e.step, e.data) for e in reader.events()] == [
            ("checkpoint", "info", 3, {"path": "x"}),
            ("band", "bad", 4, {}),
        ]
        assert [e.kind for e in reader.events(last=1)] == ["band"]
        assert reader.events("nothing") == []
        reader.close()


def test_another_reader_sees_it_while_it_is_written(tmp_path: Path) -> None:
    with Metrics(tmp_path / "m.sqlite") as metrics:
        reader = MetricsReader(tmp_path / "m.sqlite")
        metrics.log(1, {"loss": 1.0})
        limit = time.monotonic() + HANG
        while not reader.series("loss") and time.monotonic() < limit:
            time.sleep(0.02)
        assert reader.latest()["loss"].value == 1.0
        reader.close()


def test_logging_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "m.sqlite")
    metrics.flush()
    blocker = __import__("sqlite3").connect(tmp_path / "m.sqlite", isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    for step in range(2000):  # would wait until the lock is given back below, that is for ever
        metrics.log(step, {"loss": 1.0})
    blocker.execute("ROLLBACK")
    blocker.close()
    assert len(logged(metrics).series("loss")) == 2000
    metrics.close()
    metrics.close()


def test_going_back_leaves_no_double_points(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with Metrics(tmp_path / "m.sqlite", tmp_path / "tb") as metrics:
        for step in range(10):
            metrics.log(step, {"loss": 100.0 + step})
    with Metrics(tmp_path / "m.sqlite", tmp_path / "tb", resume_step=4) as metrics:
        for step in range(5, 8):
            metrics.log(step, {"loss": float(step)})
        points = [(p.step, p.value) for p in logged(metrics).series("loss")]
    assert points == [(s, 100.0 + s) for s in range(5)] + [(5, 5.0), (6, 6.0), (7, 7.0)]
    board = EventAccumulator(str(tmp_path / "tb"))
    board.Reload()
    assert [(e.step, e.value) for e in board.Scalars("loss")] == points


def test_blocks_are_what_the_points_are(tmp_path: Path) -> None:
    """However points came: in order, again, late, after going back, and before there were blocks at all."""
    path = tmp_path / "m.sqlite"
    odd = {100: math.nan, 200: math.inf, 210: -math.inf}

    def whole() -> int:
        with MetricsReader(path) as reader:
            sums = "step / 64, max(step), max(time), min(value), sum(value), max(value), count(value), count(*)"
            kept = reader.rows("SELECT * FROM blocks ORDER BY series, block")
            assert kept == reader.rows(f"SELECT series, {sums} FROM points GROUP BY series, step / 64 ORDER BY series, 2")
            points = {point.step: point.value for point in reader.series("loss")}
            found = stretches(reader, "loss", 10)
            assert 5 <= len(found) <= 10
            assert sum(s.points for s in found) == len(points)
            assert found[-1].step == max(points)
            first = [points[step] for step in points if step <= found[0].step and not math.isnan(points[step])]
            assert (found[0].low, found[0].high) == (min(first), max(first))
            return len(kept)

    with Metrics(path) as metrics:
        for step in range(1000):
            metrics.log(step, {"loss": odd.get(step, 1 / (step + 1)), **({"rare": 1.0} if step > 900 else {})})
            if step % 300 == 0:
                metrics.flush()
        metrics.log(3, {"loss": 7.0})
        metrics.flush()
        assert whole() == 16 + 2
        metrics.rewind(700)
        metrics.flush()
        assert whole() == 11  # of the rare series nothing is left
        metrics.log(701, {"loss": 1.0})
    whole()
    with sqlite3.connect(path) as database:  # as an earlier version wrote it
        database.execute("DROP TABLE blocks")
        database.execute("PRAGMA user_version=1")
    with MetricsReader(path) as reader:
        assert 5 <= len(stretches(reader, "loss", 10)) <= 11
    with Metrics(path) as metrics:
        metrics.log(702, {"loss": 1.0})
    whole()


@pytest.mark.parametrize("damage", ["garbage", "truncated", "header", "text"])
def test_a_damaged_database_is_put_aside(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "m.sqlite"
    with Metrics(path) as metrics:
        for step in range(3000):
            metrics.log(step, {"loss": 1.0, "b": 2.0})
    data = path.read_bytes()
    path.write_bytes(
        {
            "garbage": data[:4096] + os.urandom(len(data) - 4096),
            "truncated": data[: len(data) // 3],
            "header": os.urandom(100) + data[100:],
            "text": b"hello\n" * 1000,
        }[damage]
    )
    before = path.read_bytes()
    if damage in ("header", "text"):
        with pytest.raises(UserError, match="damaged"):
            MetricsReader(path)
    with Metrics(path, resume_step=2) as metrics:
        metrics.log(3, {"loss": 7.0})
        assert [p.step for p in logged(metrics).series("loss")] == [3]
        assert [e.kind for e in logged(metrics).events()] == ["metrics_damaged"]
        assert "m.sqlite.damaged-1" in logged(metrics).events()[0].message
    assert (tmp_path / "m.sqlite.damaged-1").read_bytes() == before


def test_damage_while_running_does_not_stop_the_run(tmp_path: Path) -> None:
    path = tmp_path / "m.sqlite"
    with Metrics(path) as metrics:
        for step in range(5000):
            metrics.log(step, {"loss": 1.0})
        metrics.flush()
        with open(path, "r+b") as file:
            file.write(os.urandom(path.stat().st_size))
        path.with_name("m.sqlite-wal").unlink()
        for step in range(5000, 5100):
            metrics.log(step, {"loss": 2.0, f"new{step}": 1.0})
            time.sleep(0.001)
        metrics.flush()
    assert metrics.problem is None


@pytest.mark.parametrize("gone", ["m.sqlite", "m.sqlite*", "m.sqlite-wal", "replaced"])
def test_a_database_that_is_deleted_while_it_is_written_is_there_again(tmp_path: Path, gone: str) -> None:
    path = tmp_path / "m.sqlite"
    told: list[str] = []
    with Metrics(path) as metrics:
        metrics.on_problem = told.append
        metrics.log(1, {"loss": 3.0})
        metrics.event("start", 1, "begun")
        metrics.flush()
        if gone == "replaced":
            shutil.copy(path, tmp_path / "other")
            (tmp_path / "other").rename(path)
        else:
            for file in tmp_path.glob(gone):
                file.unlink()
        for step in (2, 3):
            metrics.log(step, {"loss": 2.0})
            metrics.flush()
            assert [p.step for p in logged(metrics).series("loss")] == list(range(1, step + 1))
    assert len(told) == 1
    assert str(path) in told[0]
    with MetricsReader(path) as reader:
        assert [e.kind for e in reader.events()] == ["start", "metrics_deleted"]


def test_a_database_that_is_moved_with_its_run_is_not_made_again(tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    told: list[str] = []
    with Metrics(run / "m.sqlite") as metrics:
        metrics.on_problem = told.append
        metrics.log(1, {"loss": 3.0})
        metrics.flush()
        run.rename(elsewhere)
        metrics.log(2, {"loss": 2.0})
        metrics.flush()
    assert not run.exists()
    assert told == []
    with MetricsReader(elsewhere / "m.sqlite") as reader:
        assert [p.step for p in reader.series("loss")] == [1, 2]


def test_readers_of_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="do not exist"):
        MetricsReader(tmp_path / "none.sqlite")
    (tmp_path / "empty.sqlite").write_bytes(b"")
    with pytest.raises(UserError, match="not metrics"):
        MetricsReader(tmp_path / "empty.sqlite")
    with pytest.raises(UserError, match="cannot be opened"):
        Metrics(tmp_path)


LOOP = """
import sys
from windtunnel.run import Metrics
metrics = Metrics(sys.argv[1])
step = 0
while True:
    metrics.log(step, {"loss": float(step)})
    step += 1
    if step % 200 == 0:
        metrics.flush()
        print(step, flush=True)
"""


def test_a_kill_loses_nothing_that_was_flushed(tmp_path: Path) -> None:
    path = tmp_path / "m.sqlite"
    process = subprocess.Popen([sys.executable, "-c", LOOP, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    flushed = [int(process.stdout.readline()) for _ in range(5)][-1]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with Metrics(path) as metrics:
        steps = [p.step for p in logged(metrics).series("loss")]
        assert steps == list(range(len(steps)))
        assert len(steps) >= flushed
        assert logged(metrics).events() == []


def curve(folder: Path) -> list[int]:
    """Return the steps that TensorBoard shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return [point.step for point in found.Scalars("loss")]


@pytest.mark.parametrize("linked", [False, True])
def test_tensorboards_file_follows_a_run_that_is_moved(tmp_path: Path, linked: bool) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run.mkdir()
    board = TensorBoard(run / "tensorboard")
    board.write([("points", 0, {"loss": 2.0}, 1.0)])
    run.rename(elsewhere)
    board.write([("points", 1, {"loss": 1.5}, 2.0)])
    if linked:
        run.symlink_to(elsewhere)
    board.write([("points", 2, {"loss": 1.0}, 3.0)])
    board.close()
    assert curve(elsewhere / "tensorboard") == [0, 1, 2]
    assert run.exists() is linked


def test_tensorboard_begins_a_new_file_where_the_run_was_copied_to_another_disk(tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run.mkdir()
    board = TensorBoard(run / "tensorboard")
    board.write([("points", 0, {"loss": 2.0}, 1.0)])
    shutil.copytree(run, elsewhere)
    shutil.rmtree(run)
    board.write([("points", 1, {"loss": 1.5}, 2.0)])
    assert not run.exists()
    run.symlink_to(elsewhere)
    board.write([("points", 2, {"loss": 1.0}, 3.0)])
    board.close()
    assert curve(elsewhere / "tensorboard") == [0, 1, 2]


def test_series_that_began_while_the_disk_was_full_are_there_once_there_is_room(tmp_path: Path) -> None:
    with Metrics(tmp_path / "metrics.sqlite") as metrics:
        pages = metrics._connection.execute("PRAGMA page_count").fetchone()[0]
        metrics._connection.execute(f"PRAGMA max_page_count={pages + 2}")  # SQLite's own "database or disk is full"
        values = {f"{'a long name' * 20} {number}": float(number) for number in range(200)}
        metrics.log(1, values)
        with pytest.raises(UserError, match="full"):
            metrics.flush()
        metrics._connection.execute("PRAGMA max_page_count=100000")
        metrics.log(2, values)
        assert {name: point.value for name, point in logged(metrics).latest().items()} == values
        assert all(len(logged(metrics).series(name)) == 2 for name in values)


def test_metrics_wait_while_a_checkpoint_needs_the_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "_TOLD_AFTER", 0.0)
    told: list[str] = []
    lacking = 0

    def wanted() -> tuple[int, int]:
        return 0, shutil.disk_usage(tmp_path).free - SLACK + lacking

    with Metrics(tmp_path / "m.sqlite") as metrics:
        metrics.on_problem, metrics.room = told.append, Room(wanted)
        metrics.log(1, {"loss": 3.0})
        metrics.flush()
        lacking = 1000  # less than the metrics take, which could have made the room
        for step in (2, 3):
            metrics.log(step, {"loss": 2.0})
            with pytest.raises(UserError, match="free are for checkpoints"):
                metrics.flush()
        with MetricsReader(metrics.path) as reader:
            assert [p.step for p in reader.series("loss")] == [1]
        lacking = 2**50  # more than all of them could make
        assert [p.step for p in logged(metrics).series("loss")] == [1, 2, 3]
        assert [e.kind for e in logged(metrics).events()] == ["metrics_wait"]
    assert len(told) == 1


def test_on_a_small_disk_checkpoints_keep_their_room_and_the_last_points_are_thinned(tmp_path: Path) -> None:
    disk, told, room = tmp_path / "disk", list[str](), 1 << 20
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        with Metrics(disk / "m.sqlite") as metrics:
            metrics.on_problem, metrics.room = told.append, Room(lambda: (room, room))
            for step in range(1, 6001):
                metrics.log(step, {f"value{i}": float(step) for i in range(20)})
                if step % 100 == 0:
                    with contextlib.suppress(UserError):
                        metrics.flush()
                    assert shutil.disk_usage(disk).free >= room
            (disk / "checkpoint").write_bytes(bytes(room))
        with MetricsReader(metrics.path) as reader:
            steps = [p.step for p in reader.series("value0")]
        assert steps[:100] == list(range(1, 101))
        assert len(steps) < 6000
        assert steps[-1] > 5000
        assert "found no room" in told[-1]
    finally:
        subprocess.run(["umount", str(disk)], check=True)
