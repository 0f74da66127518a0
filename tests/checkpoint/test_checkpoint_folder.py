"""Reading back, damage, choosing, retention, full disks."""

import contextlib
import json
import os
import resource
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
import torch

from windtunnel.checkpoint import (
    CheckpointStore,
    DamagedCheckpoint,
    DiskFull,
    Facts,
    NoGoodCheckpoint,
    Saver,
    Slice,
    SpoiledWeights,
    apply_retention,
    choose_checkpoint,
    make_room,
)
from windtunnel.recipe import Checkpoints, UserError, load_recipe
from windtunnel.run import RunFolder


def parts_of(step: int, elements: int = 32) -> dict[str, dict[str, object]]:
    model = {"w": torch.full((4, elements // 4), float(step)), "scale": torch.tensor(float(step)), "empty": torch.zeros(0, 3)}
    return {"model": model, "optimizer": {"w.momentum": Slice(torch.arange(float(elements)) + step, (4, elements // 4))}}


def save(
    store: CheckpointStore,
    step: int,
    loss: float | None = None,
    policy: Checkpoints | None = None,
    near: float | None = None,
    **rest: object,
) -> None:
    config = {"shape.json": {"width": 8}}
    saver = Saver(store, parts_of(step), policy=policy, config=config, **rest)  # type: ignore[arg-type]
    saver.save(Facts(step, {"position": step * 10}, loss, near))
    saved = saver.wait()
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
    assert found.config == {"shape.json": {"width": 8}}
    loaded = found.weights()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in parts_of(7)["model"].items())  # type: ignore[call-overload]
    mine = Slice(torch.zeros(4), (4, 8), 5)
    found.load({"w.momentum": mine}, "optimizer")
    assert mine.local.tolist() == [12.0, 13.0, 14.0, 15.0]


def test_another_model_is_refused_in_words(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    for values, words in (
        ({"w": torch.zeros(3, 8)}, r"w is of shape \[4, 8\], expected \[3, 8\]"),
        ({"v": torch.zeros(1)}, "v is missing"),
    ):
        with pytest.raises(UserError, match=words):
            store.at(1).load(values)


def test_dcp_itself_reads_the_parts(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    store = CheckpointStore(tmp_path / "c")
    save(store, 3)
    for part, name in (("model", "w"), ("optimizer", "w.momentum")):
        dcp_to_torch_save(store.at(3).path / part, tmp_path / "whole.pt")
        assert torch.load(tmp_path / "whole.pt")[name].shape == (4, 8)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "flipped bit in weights": lambda p: flip(p / "model/__0_0.distcp"),
    "flipped bit in optimizer": lambda p: flip(p / "optimizer/__0_0.distcp"),
    "flipped bit in the list of tensors": lambda p: flip(p / "model/.metadata"),
    "flipped bit in manifest": lambda p: flip(p / "checkpoint.json"),
    "truncated weights": lambda p: os.truncate(p / "model/__0_0.distcp", 100),
    "missing optimizer": lambda p: (p / "optimizer/__0_0.distcp").unlink(),
    "missing manifest": lambda p: (p / "checkpoint.json").unlink(),
    "empty manifest": lambda p: (p / "checkpoint.json").write_text(""),
    "manifest of another shape": lambda p: (p / "checkpoint.json").write_text("[1]"),
    "empty folder": lambda p: [shutil.rmtree(p), p.mkdir()],
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
    apply_retention(store, Checkpoints(keep_last=1, keep_best=0, keep_hourly=False))
    assert store.newest_good().step == 1  # type: ignore[union-attr]


def test_a_list_of_tensors_that_would_run_code_is_refused(tmp_path: Path) -> None:
    import pickle

    class Bomb:
        def __reduce__(self) -> object:
            return os.system, ("touch " + str(tmp_path / "exploded"),)

    store = CheckpointStore(tmp_path / "c")
    save(store, 1)
    found = store.at(1)
    (found.path / "model/.metadata").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(DamagedCheckpoint, match="has no place in a list of tensors"):
        found.weights()
    assert not (tmp_path / "exploded").exists()


def test_an_older_versions_checkpoint_is_refused(tmp_path: Path) -> None:
    from windtunnel.checkpoint.folder import _manifest_checksum

    path = tmp_path / "step-00000004"
    path.mkdir()
    old = {"format": 1, "step": 4, "world": 1, "validation_loss": None, "created": 0.0, "state": {}, "files": {}}
    (path / "checkpoint.json").write_text(json.dumps(old | {"checksum": _manifest_checksum(old)}))
    with pytest.raises(UserError, match="written by an older version") as caught:
        CheckpointStore(tmp_path).newest_good()
    assert "export the run with the version that wrote it" in str(caught.value.fix)


def test_saving_a_step_again_replaces_it_only_once_it_is_there(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    flip(store.all()[0].path / "model/__0_0.distcp")
    save(store, 1, 0.5)
    assert store.newest_good().validation_loss == 0.5  # type: ignore[union-attr]
    flip(store.all()[0].path / "checkpoint.json")
    assert store.newest_good() is None
    save(store, 1, 0.25)
    save(store, 1, 0.125, Checkpoints(keep_last=1))
    assert store.newest_good().validation_loss == 0.125  # type: ignore[union-attr]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run folder with a tokenizer."""
    made = RunFolder.create(tmp_path / "runs", load_recipe("charlm"), rig={})
    made.close()
    made.tokenizer_path.write_text("{}")
    return made


def test_the_next_best_replaces_a_damaged_best_and_it_is_said(run: RunFolder) -> None:
    store = CheckpointStore(run.checkpoints_dir)
    save(store, 77, 2.0)
    save(store, 147, None, near=1.1)  # validated at step 140
    save(store, 150, 1.0)
    assert choose_checkpoint(run.path, "best").warnings == ()
    flip(run.checkpoints_dir / "step-00000150/model/__0_0.distcp")
    chosen = choose_checkpoint(run.path, "best")
    assert chosen.checkpoint.step == 147
    assert len(chosen.warnings) == 1
    assert "step-00000150/model/__0_0.distcp: checksum differs" in chosen.warnings[0]
    assert "step 147 is used instead" in chosen.warnings[0]
    with pytest.raises(UserError, match=r"no good checkpoint of step 150.*checksum differs"):
        choose_checkpoint(run.path, 150)
    for step in (77, 147):
        flip(run.checkpoints_dir / f"step-{step:08d}/model/__0_0.distcp")
    with pytest.raises(NoGoodCheckpoint, match="no good checkpoint to export") as caught:
        choose_checkpoint(run.path, "best", "to export")
    assert caught.value.exit_code == 1


def test_another_tokenizer_than_the_checkpoints_is_refused(run: RunFolder) -> None:
    save(CheckpointStore(run.checkpoints_dir), 3, beside=[run.tokenizer_path])
    assert choose_checkpoint(run.path, "newest").checkpoint.step == 3
    run.tokenizer_path.write_text("{ }")
    with pytest.raises(UserError, match=r"tokenizer\.json: 3 bytes, 2 were written since"):
        choose_checkpoint(run.path, "newest")


def test_retention_keeps_last_best_and_hourly(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    policy = Checkpoints(keep_last=2, keep_best=2, keep_hourly=False)
    for step, loss in enumerate([5.0, 3.0, 1.0, 2.0, 4.0, 6.0, 7.0]):
        save(store, step, loss, policy)
    assert [c.step for c in store.all()] == [2, 3, 5, 6]
    assert [c.step for c in store.all() if c.has_optimizer] == [5, 6]
    assert all(c.verify() == [] for c in store.all())
    assert not (store.at(2).path / "optimizer").exists()
    assert store.best().step == 2  # type: ignore[union-attr]
    assert store.newest_good(before=6).step == 5  # type: ignore[union-attr]
    assert store.newest_good(before=5, with_optimizer=True) is None
    with pytest.raises(UserError, match="older checkpoints keep weights only"):
        store.at(2).load({}, "optimizer")


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
    shutil.copytree(store.at(1).path / "optimizer", tmp_path / "kept")
    apply_retention(store, policy)
    shutil.copytree(tmp_path / "kept", store.at(1).path / "optimizer")
    assert store.at(1).verify() == []
    apply_retention(store, policy)
    assert not (store.at(1).path / "optimizer").exists()


def test_spoiled_weights_are_not_saved_and_it_is_known_at_once(tmp_path: Path) -> None:
    store, weights = CheckpointStore(tmp_path), torch.ones(5)
    saver = Saver(store, {"model": {"w": weights}, "optimizer": {"m": torch.zeros(2)}})
    weights[3] = float("inf")
    saver.save(Facts(4))
    with pytest.raises(SpoiledWeights):
        saver.poll()
    assert list(tmp_path.iterdir()) == []
    weights[3] = 0.0
    saver.save(Facts(5))
    assert saver.wait() is not None


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


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("mount is not allowed here")
    try:
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
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_disk_without_one_free_byte_has_room_for_the_last_weights(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("mount is not allowed here")
    try:
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
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_state_and_values_are_taken_when_a_save_begins(tmp_path: Path) -> None:
    store, state, big = CheckpointStore(tmp_path), {"position": [1]}, torch.ones(4_000_000)
    saver = Saver(store, {"model": {"w": big}})
    saver.save(Facts(1, state))
    state["position"].append(2)
    saver.before_update()
    big.zero_()
    assert saver.wait() is not None
    assert store.at(1).state == {"position": [1]}
    assert bool((store.at(1).weights()["w"] == 1).all())


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
    assert set(data["files"]) == {f"{part}/{name}" for part in ("model", "optimizer") for name in (".metadata", "__0_0.distcp")}


@pytest.mark.parametrize("when", ["writing", "committing"])
def test_a_run_that_is_moved_and_linked_back_meanwhile_keeps_its_checkpoint(tmp_path: Path, when: str) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run.mkdir()
    calls = []

    def move() -> None:
        calls.append(None)
        if len(calls) == 1:
            run.rename(elsewhere)
            threading.Timer(0.3, run.symlink_to, (elsewhere,)).start()

    store = CheckpointStore(run / "checkpoints")
    said: list[tuple[object, ...]] = []
    saver = Saver(store, parts_of(3), before_commit=move if when == "committing" else None, on_event=lambda *e: said.append(e))
    if when == "writing":
        move()
    saver.save(Facts(3))
    saved = saver.wait()
    assert saved is not None
    assert [event[0] for event in said] == ["checkpoint"]
    found = CheckpointStore(elsewhere / "checkpoints").newest_good()
    assert found is not None
    assert found.step == 3


def test_a_run_that_is_moved_for_good_is_not_made_again_in_its_old_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windtunnel.checkpoint.moved.WAIT_SECONDS", 0.2)
    (tmp_path / "run").mkdir()
    saver = Saver(CheckpointStore(tmp_path / "run" / "checkpoints"), parts_of(3))
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    saver.save(Facts(3))
    with pytest.raises(UserError, match="was not saved"):
        saver.wait()
    assert not (tmp_path / "run").exists()
