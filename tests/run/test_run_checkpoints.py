"""Saving, reading back, damage, sharding over ranks, retention and full disks."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from waiting import HANG

from windtunnel.recipe import Checkpoints, UserError
from windtunnel.run import CheckpointStore, CheckpointWriter, DamagedCheckpoint, DiskFull, apply_retention, disk_needed

KEEP_ALL = None


def weights_of(step: int) -> dict[str, np.ndarray]:
    return {"w": np.full((4, 8), step, np.float32), "scale": np.array(step, np.float32), "empty": np.zeros((0, 3), np.float32)}


def save(store: CheckpointStore, step: int, loss: float | None = None, policy: Checkpoints | None = KEEP_ALL) -> None:
    writer = CheckpointWriter(store, policy=policy)
    optimizer = {"w|momentum|0:32": np.arange(32, dtype=np.float32) + step}
    writer.start(step, weights_of(step), optimizer, {"position": step * 10}, loss)
    saved = writer.wait()
    assert saved is not None
    assert saved.step == step


def test_what_is_read_is_what_was_saved(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "c")
    assert store.newest_good() is None
    assert store.best() is None
    assert store.all() == []
    save(store, 7, 1.25)
    found = store.newest_good()
    assert found is not None
    assert (found.step, found.validation_loss, found.state, found.world) == (7, 1.25, {"position": 70}, 1)
    loaded = found.weights()
    for name, array in weights_of(7).items():
        assert loaded[name].shape == array.shape
        np.testing.assert_array_equal(loaded[name], array)
    assert found.has_optimizer
    assert found.optimizer_keys() == [("w", "momentum", 32)]
    np.testing.assert_array_equal(found.optimizer_slice("w", "momentum", 5, 9), np.arange(5, 9, dtype=np.float32) + 7)
    with pytest.raises(DamagedCheckpoint, match="32:40"):
        found.optimizer_slice("w", "momentum", 30, 40)


def test_torch_reads_the_weights(tmp_path: Path) -> None:
    torch_reader = pytest.importorskip("safetensors.torch")
    store = CheckpointStore(tmp_path)
    save(store, 3)
    assert float(torch_reader.load_file(store.at(3).weights_file)["scale"]) == 3.0


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_write_shards_that_are_read_in_any_cut(tmp_path: Path, world: int) -> None:
    store = CheckpointStore(tmp_path)
    full = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    cuts = np.linspace(0, 1000, world + 1).astype(int)
    writers = [CheckpointWriter(store, r, world, session="launch-1") for r in range(world)]
    for step in (5, 10):
        for r in reversed(range(world)):
            piece = {f"w|exp_avg|{cuts[r]}:{cuts[r + 1]}": full[cuts[r] : cuts[r + 1]] * step}
            writers[r].start(step, weights_of(step) if r == 0 else None, piece, {"step": step})
        assert all(w.wait(HANG) is not None for w in writers)
    found = store.newest_good()
    assert found is not None
    assert found.step == 10
    assert found.world == world
    assert len(found.files) == world + 1
    assert not list(found.path.glob("part-*"))
    for start, stop in [(0, 1000), (0, 1), (333, 334), (499, 768), (999, 1000), (4, 4)]:
        np.testing.assert_array_equal(found.optimizer_slice("w", "exp_avg", start, stop), full[start:stop] * 10)


def test_a_rank_that_never_writes_fails_the_save_and_leaves_nothing(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    events: list[tuple[str, int, str, str]] = []
    writer = CheckpointWriter(store, 0, 2, session="x", part_timeout=0.2, on_event=lambda *e: events.append(e))
    writer.start(2, weights_of(2), {}, {})
    with pytest.raises(UserError, match="rank 1 did not write"):
        writer.wait()
    assert [e[0] for e in events] == ["checkpoint_failed"]
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "flipped bit in weights": lambda p: flip(p / "model.safetensors"),
    "flipped bit in optimizer": lambda p: flip(p / "optimizer-00000-of-00001.safetensors"),
    "flipped bit in manifest": lambda p: flip(p / "checkpoint.json"),
    "truncated weights": lambda p: os.truncate(p / "model.safetensors", 100),
    "missing optimizer": lambda p: (p / "optimizer-00000-of-00001.safetensors").unlink(),
    "missing manifest": lambda p: (p / "checkpoint.json").unlink(),
    "empty manifest": lambda p: (p / "checkpoint.json").write_text(""),
    "manifest of another shape": lambda p: (p / "checkpoint.json").write_text("[1]"),
    "empty folder": lambda p: [f.unlink() for f in p.iterdir()],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_one_before_a_damaged_one_is_used(tmp_path: Path, damage: str) -> None:
    told: list[str] = []
    store = CheckpointStore(tmp_path, told.append)
    save(store, 1, 2.0)
    save(store, 2, 1.0)
    assert store.newest_good().step == 2  # type: ignore[union-attr]  # and its verification is remembered
    DAMAGE[damage](store.all()[-1].path)
    assert store.newest_good().step == 1  # type: ignore[union-attr]
    assert store.best().step == 1  # type: ignore[union-attr]
    assert len(told) == 1
    assert "step-00000002" in told[0]
    with pytest.raises(UserError, match="step 2"):
        store.at(2)
    policy = Checkpoints(keep_last=1, keep_best=0, keep_hourly=False)
    apply_retention(store, policy)
    assert store.newest_good().step == 1  # type: ignore[union-attr]


def test_no_good_checkpoint_at_all(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    flip(store.all()[0].weights_file)
    assert store.newest_good() is None
    assert store.best() is None


def test_saving_a_step_again_replaces_it_only_once_it_is_there(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    flip(store.all()[0].weights_file)
    save(store, 1, 0.5)
    assert store.newest_good().validation_loss == 0.5  # type: ignore[union-attr]
    flip(store.all()[0].path / "checkpoint.json")
    assert store.newest_good() is None
    save(store, 1, 0.25)
    policy = Checkpoints(keep_last=1)
    save(store, 1, 0.125, policy)
    assert store.newest_good().validation_loss == 0.125  # type: ignore[union-attr]


def test_retention_keeps_last_best_and_hourly(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    policy = Checkpoints(keep_last=2, keep_best=2, keep_hourly=False)
    losses = [5.0, 3.0, 1.0, 2.0, 4.0, 6.0, 7.0]
    for step, loss in enumerate(losses):
        save(store, step, loss, policy)
    assert [c.step for c in store.all()] == [2, 3, 5, 6]
    assert [c.step for c in store.all() if c.has_optimizer] == [5, 6]
    assert all(c.verify() == [] for c in store.all())
    assert not list(store.at(2).path.glob("optimizer-*"))
    assert store.best().step == 2  # type: ignore[union-attr]
    assert store.newest_good(before=6).step == 5  # type: ignore[union-attr]
    assert store.newest_good(before=5, with_optimizer=True) is None


def test_one_an_hour_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path)
    policy = Checkpoints(keep_last=1, keep_best=0, keep_hourly=True)
    for step in range(12):  # every 20 minutes for 4 hours
        monkeypatch.setattr(time, "time", lambda step=step: 3600.0 * 100 + step * 1200)
        save(store, step, None, policy)
    assert [c.step for c in store.all()] == [0, 3, 6, 9, 11]


def test_a_kill_between_forgetting_and_deleting_optimizer_files(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for step in (1, 2, 3):
        save(store, step, float(step))
    policy = Checkpoints(keep_last=1, keep_best=3, keep_hourly=False)
    extra = (store.at(1).path / "optimizer-00000-of-00001.safetensors").read_bytes()
    apply_retention(store, policy)
    (store.at(1).path / "optimizer-00000-of-00001.safetensors").write_bytes(extra)
    assert store.at(1).verify() == []
    apply_retention(store, policy)
    assert not list(store.at(1).path.glob("optimizer-*"))


def test_disk_needed_is_what_is_used(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    policy = Checkpoints(keep_last=2, keep_best=2, keep_hourly=False)
    big = np.zeros(250_000, np.float32)
    for step in range(6):
        writer = CheckpointWriter(store, policy=policy)
        writer.start(step, {"w": big}, {"w|m|0:250000": big, "w|v|0:250000": big}, {}, 10.0 - step if step < 2 else 20.0)
        writer.wait()
    used = sum(f.stat().st_size for f in tmp_path.rglob("*") if f.is_file())
    need = disk_needed(policy, big.nbytes, 2 * big.nbytes, hours=0)
    assert used == pytest.approx(need.kept, rel=0.01)
    assert need.peak == need.kept + 3 * big.nbytes
    assert disk_needed(Checkpoints(), 1, 2, hours=10).kept > disk_needed(Checkpoints(), 1, 2, hours=1).kept


def test_no_room_is_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    writer = CheckpointWriter(store)
    with pytest.raises(DiskFull, match="free"):
        writer.start(2, weights_of(2), {}, {})
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]
    assert not writer.busy
    monkeypatch.undo()
    writer.start(2, weights_of(2), {}, {})
    assert writer.wait() is not None


LIMITED = """
import resource, sys
from pathlib import Path
import numpy as np
from windtunnel.run import CheckpointStore, CheckpointWriter, DiskFull
store = CheckpointStore(Path(sys.argv[1]))
writer = CheckpointWriter(store)
small, big = {"w": np.ones(1000, np.float32)}, {"w": np.ones(3_000_000, np.float32)}
writer.start(1, small, {}, {}); writer.wait()
resource.setrlimit(resource.RLIMIT_FSIZE, (5 << 20, resource.RLIM_INFINITY))
writer.start(2, big, {}, {})
try:
    writer.wait()
except DiskFull as error:
    print("DiskFull:", error)
writer.start(3, small, {}, {}); writer.wait()
print([c.step for c in store.all()], sorted(p.name for p in store.folder.iterdir()))
"""


def test_a_write_that_fails_half_way_leaves_the_others(tmp_path: Path) -> None:
    out = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=True).stdout
    assert "DiskFull: checkpoint of step 2" in out
    assert "older ones are intact" in out
    assert "[1, 3] ['step-00000001', 'step-00000003']" in out


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("mount is not allowed here")
    try:
        store = CheckpointStore(disk / "checkpoints")
        save(store, 1)
        writer = CheckpointWriter(store)
        (disk / "filler").write_bytes(bytes(7 << 20))
        with pytest.raises(DiskFull):
            writer.start(2, {"w": np.ones(500_000, np.float32)}, {}, {})
        writer.check_room = lambda needed: None  # type: ignore[method-assign]  # another process fills it after the check
        writer.start(3, {"w": np.ones(500_000, np.float32)}, {}, {})
        with pytest.raises(DiskFull, match="No space left"):
            writer.wait()
        assert [c.step for c in store.all()] == [1]
        assert store.newest_good() is not None
        assert [p.name for p in store.folder.iterdir()] == ["step-00000001"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_start_returns_at_once_and_state_is_taken_then(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    writer = CheckpointWriter(store)
    state = {"position": [1]}
    big = {"w": np.ones(16_000_000, np.float32)}
    writer.start(1, big, {}, state)
    state["position"].append(2)
    assert writer.busy
    saved = writer.wait()
    assert saved is not None
    assert store.at(1).state == {"position": [1]}


def test_readers_may_look_while_it_is_written(tmp_path: Path) -> None:
    store, stop, seen = CheckpointStore(tmp_path), threading.Event(), []

    def read() -> None:
        reader = CheckpointStore(tmp_path)
        while not stop.is_set():
            found = reader.newest_good()
            if found:
                seen.append(found.step)

    thread = threading.Thread(target=read)
    thread.start()
    for step in range(1, 25):
        save(store, step)
    stop.set()
    thread.join()
    assert seen == sorted(seen)
    assert seen[-1] > 1


def test_manifest_is_plain_json(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 4, float("nan"))
    data = json.loads((store.at(4).path / "checkpoint.json").read_text())
    assert data["step"] == 4
    assert data["validation_loss"] is None
    assert set(data["files"]) >= {"model.safetensors"}
