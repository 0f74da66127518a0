"""SIGKILL at random moments of saving: a good checkpoint is always left, and it is what was saved."""

import contextlib
import multiprocessing
import os
import random
import sys
import time
from pathlib import Path

import pytest
import torch
from waiting import until

from windtunnel.checkpoint import CheckpointStore, Saver

LOOP = Path(__file__).with_name("checkpoint_loop.py")
sys.path.insert(0, str(LOOP.parent))
from checkpoint_loop import ELEMENTS, main, tensors  # noqa: E402


def check(folder: Path, saved: int) -> int:
    """The newest good checkpoint is at least `saved`, sound, and nothing there is damaged."""
    store = CheckpointStore(folder)
    newest = store.newest_good()
    assert newest is not None
    assert store.problems == []
    assert newest.step >= saved
    assert newest.state == {"step": newest.step}
    wanted = tensors(newest.step)
    loaded = newest.weights()
    assert set(loaded) == set(wanted["model"])
    assert all(torch.equal(loaded[name], tensor) for name, tensor in wanted["model"].items())
    moments = dict(newest.part("optimizer").tensors())
    assert torch.equal(moments["a.moment"].view(ELEMENTS), wanted["optimizer"]["a.moment"])
    for older in store.all():
        assert older.verify() == []
        assert torch.equal(older.weights()["a"], tensors(older.step)["model"]["a"])
    return newest.step


def kill_repeatedly(folder: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    saved, in_the_middle = 0, 0
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["windtunnel.checkpoint.saver"])  # torch is imported once
    while kills > 0 or not in_the_middle:
        kills -= 1
        heard, told = context.Pipe(duplex=False)
        process = context.Process(target=main, args=(folder, told), daemon=True)
        process.start()
        told.close()
        saved = heard.recv()  # it runs and has saved once: from here any moment may come
        if kills % 2:
            time.sleep(chance.uniform(0, 0.15))
        else:  # in the middle of one, if this process is not held up until it is over
            until(lambda: _unfinished(folder), "no save began")
        process.kill()
        process.join()
        with contextlib.suppress(EOFError):
            while True:
                saved = heard.recv()
        in_the_middle += _unfinished(folder)
        saved = check(folder, saved)
    Saver(CheckpointStore(folder), {"model": {"w": torch.zeros(1)}})
    assert not _unfinished(folder)


def _unfinished(folder: Path) -> bool:
    return any(".tmp-" in name for name in os.listdir(folder))


def test_kills_at_random_moments(tmp_path: Path) -> None:
    kill_repeatedly(tmp_path / "checkpoints", kills=6, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_sixty_kills(tmp_path: Path) -> None:
    kill_repeatedly(tmp_path / "checkpoints", kills=60, seed=2)
