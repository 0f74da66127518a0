"""Disks that are full, or become so: room is made for the last checkpoint, and a model is never lost."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from checkpoint_saves import flip, parts_of, save

from windtunnel.checkpoint import CheckpointStore, DiskFull, Facts, Saver, make_room
from windtunnel.checkpoint import saver as saving


def test_no_room_is_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    saver = Saver(store, parts_of(2))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    with pytest.raises(DiskFull, match="free"):
        saver.check_room()
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]
    monkeypatch.undo()
    saver.check_room()


class SmallDisk(CheckpointStore):
    """A store on a disk of `size` bytes."""

    size = 0

    def free_bytes(self) -> int:
        return self.size - sum(f.stat().st_size for f in self.folder.rglob("*") if f.is_file())


def test_older_checkpoints_go_for_the_last_one_and_the_best_model_stays(tmp_path: Path) -> None:
    whole = {"model": {"w": torch.ones(100_000)}, "optimizer": {"m": torch.ones(100_000), "v": torch.ones(100_000)}}
    told: list[str] = []
    for megabytes, parts, left in (
        (8.0, ("model", "optimizer"), [1, 2, 3, 4]),
        (4.0, ("model", "optimizer"), [1, 2, 3, 4]),  # optimizer states of older ones suffice
        (2.6, ("model", "optimizer"), [2, 4]),
        (1.85, ("model", "optimizer"), [2]),  # the best
        (0.9, ("model",), [2]),
    ):
        store = SmallDisk(tmp_path / str(megabytes))
        saver = Saver(store, whole, on_event=lambda *event: told.append(event[0]))
        for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0), (4, 4.0)):
            saver.save(Facts(step, {}, loss))
            assert saver.wait() is not None
        store.size = round(megabytes * 1e6)
        assert saver.room_for_last() == parts
        assert [c.step for c in store.all()] == left
        assert all(store.is_good(c) for c in store.all())
        saver.save(Facts(5, {}, 5.0), parts)
        assert saver.wait() is not None
        assert store.newest_good().has_optimizer == ("optimizer" in parts)  # type: ignore[union-attr]
    assert "weights_only" in told
    store.size = 0
    with pytest.raises(DiskFull):
        saver.room_for_last()
    assert [c.step for c in store.all()] == [2], "the best model is never given up"


def test_what_is_damaged_goes_first(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for step in (1, 2, 3):
        save(store, step, float(step))
    flip(store.at(2).path / "model/__0_0.distcp")
    store.free_bytes = lambda: 10 if (tmp_path / "step-00000002").exists() else 1000  # type: ignore[method-assign]
    assert make_room(store, 100).deleted == ("step-00000002",)


def test_a_write_that_fails_half_way_leaves_the_others(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    saver = Saver(store, {"model": {"w": torch.ones(3_000_000)}})
    resource.setrlimit(resource.RLIMIT_FSIZE, (5 << 20, limits[1]))
    try:
        saver.save(Facts(2))
        with pytest.raises(DiskFull, match=r"checkpoint of step 2.*File too large; older ones are intact"):
            saver.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    save(store, 3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000001", "step-00000003"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(folder)], capture_output=True).returncode:
        pytest.skip("mount is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(disk: Path) -> None:
    store = CheckpointStore(disk / "checkpoints")
    save(store, 1)
    saver = Saver(store, {"model": {"w": torch.ones(500_000)}})
    (disk / "filler").write_bytes(bytes(7 << 20))
    with pytest.raises(DiskFull):
        saver.check_room()
    saver.save(Facts(3))  # as if another process had filled it after the check
    with pytest.raises(DiskFull, match="No space left"):
        saver.wait()
    assert [c.step for c in store.all()] == [1]
    assert store.newest_good() is not None
    assert [p.name for p in store.folder.iterdir()] == ["step-00000001"]


def test_a_disk_without_one_free_byte_has_room_for_the_last_weights(disk: Path) -> None:
    store = CheckpointStore(disk / "checkpoints")
    elements = 200_000
    parts = {"model": {"w": torch.ones(elements)}, "optimizer": {"m": torch.ones(3 * elements)}}
    saver = Saver(store, parts)
    saver.save(Facts(1, {}, 2.0))
    assert saver.wait() is not None
    with contextlib.suppress(OSError), open(disk / "filler", "wb", buffering=0) as filler:
        while filler.write(bytes(4096)):
            pass
    assert store.free_bytes() == 0
    assert saver.room_for_last() == ("model",)
    older = store.at(1)
    assert store.is_good(older)
    assert not older.has_optimizer
    saver.save(Facts(2, {}, 1.0), ["model"])
    assert saver.wait() is not None
    assert [c.step for c in store.all() if store.is_good(c)] == [1, 2]


@pytest.mark.parametrize("how", ["refused", "dies"])
def test_where_no_thread_begins_training_waits_for_the_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Where memory has run out the system refuses a thread, or gives one that dies before its first line."""

    def start(*_: object) -> int:
        if how == "refused":
            raise RuntimeError("can't start new thread")
        return 0

    store, told = CheckpointStore(tmp_path), list[str]()
    with monkeypatch.context() as short:
        short.setattr(saving, "BEGIN_SECONDS", 0.05)
        short.setattr(saving._thread, "start_new_thread", start)
        for step in (1, 2):
            save(store, step, on_event=lambda *event: told.append(event[0]))
    assert [c.step for c in store.all() if store.is_good(c)] == [1, 2]
    assert told.count("saved_in_place") == 2
