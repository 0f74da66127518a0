"""Reading back, damage, choosing, retention."""

import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest
import torch
from checkpoint_saves import flip, parts_of, save

from windtunnel.checkpoint import (
    CheckpointStore,
    DamagedCheckpoint,
    Facts,
    NoGoodCheckpoint,
    Saver,
    Slice,
    SpoiledWeights,
    apply_retention,
    choose_checkpoint,
)
from windtunnel.recipe import Checkpoints, UserError, load_recipe
from windtunnel.run import RunFolder


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
    store = CheckpointStore(tmp_path)
    save(store, 1, 2.0)
    save(store, 2, 1.0)
    assert store.newest_good().step == 2  # type: ignore[union-attr]  # and its verification is remembered
    DAMAGE[damage](store.all()[-1].path)
    assert store.newest_good().step == 1  # type: ignore[union-attr]
    assert store.best().step == 1  # type: ignore[union-attr]
    assert len(store.problems) == 1
    assert "step-00000002" in store.problems[0]
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


def test_a_file_in_the_place_of_the_best_checkpoint_is_told_like_damage(run: RunFolder) -> None:
    store = CheckpointStore(run.checkpoints_dir)
    save(store, 140, 2.0)
    save(store, 150, 1.0)
    best = run.checkpoints_dir / "step-00000150"
    shutil.rmtree(best)
    best.write_text("not a folder")
    chosen = choose_checkpoint(run.path, "best")
    assert chosen.checkpoint.step == 140
    assert [("step-00000150: a file is in the place" in w, "step 140" in w) for w in chosen.warnings] == [(True, True)]
    save(store, 150, 1.0)  # beside it: nothing is renamed onto the file
    assert choose_checkpoint(run.path, "best").checkpoint.step == 150
    assert best.read_text() == "not a folder"


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
    monkeypatch.setattr("windtunnel.checkpoint.one_save.WAIT_SECONDS", 0.2)
    (tmp_path / "run").mkdir()
    saver = Saver(CheckpointStore(tmp_path / "run" / "checkpoints"), parts_of(3))
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    saver.save(Facts(3))
    with pytest.raises(UserError, match="was not saved"):
        saver.wait()
    assert not (tmp_path / "run").exists()
