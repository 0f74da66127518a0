"""SIGKILL at random moments of saving: a good checkpoint is always left, and it is what was saved."""

import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from windtunnel.run import CheckpointStore, CheckpointWriter

SAVER = Path(__file__).with_name("saver.py")
sys.path.insert(0, str(SAVER.parent))
from saver import ELEMENTS, arrays  # noqa: E402


def check(folder: Path, saved: int) -> int:
    """The newest good checkpoint is at least `saved`, sound, and nothing there is damaged."""
    store = CheckpointStore(folder)
    newest = store.newest_good()
    assert newest is not None
    assert store.problems == []
    assert newest.step >= saved
    assert newest.state == {"step": newest.step}
    weights, optimizer = arrays(newest.step)
    loaded = newest.weights()
    assert set(loaded) == set(weights)
    for name, array in weights.items():
        np.testing.assert_array_equal(loaded[name], array)
    np.testing.assert_array_equal(newest.optimizer_slice("a", "moment", 0, ELEMENTS), optimizer[f"a|moment|0:{ELEMENTS}"])
    for older in store.all():
        assert older.verify() == []
        np.testing.assert_array_equal(older.weights()["a"], arrays(older.step)[0]["a"])
    return newest.step


def kill_repeatedly(folder: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    saved, in_the_middle = 0, 0
    for _ in range(kills):
        process = subprocess.Popen([sys.executable, str(SAVER), str(folder)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        line = process.stdout.readline()  # it runs and has saved once: from here any moment may come
        time.sleep(chance.uniform(0, 0.15))
        process.kill()
        rest = process.stdout.read()
        process.wait()
        saved = int(([line] + [x + "\n" for x in rest.split("\n")[:-1]])[-1])
        in_the_middle += any(".tmp-" in p.name for p in folder.iterdir())
        saved = check(folder, saved)
    assert in_the_middle > 0, "no kill hit a save; the test proves nothing"
    CheckpointWriter(CheckpointStore(folder))
    assert not [p for p in folder.iterdir() if ".tmp-" in p.name]


def test_ten_kills(tmp_path: Path) -> None:
    kill_repeatedly(tmp_path / "checkpoints", kills=12, seed=1)


@pytest.mark.slow
def test_sixty_kills(tmp_path: Path) -> None:
    kill_repeatedly(tmp_path / "checkpoints", kills=60, seed=2)
