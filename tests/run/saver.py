"""Saves checkpoints in a loop until it is killed; every array is a function of its step. Run by test_run_kill."""

import sys
from pathlib import Path

import numpy as np

from windtunnel.recipe import Checkpoints
from windtunnel.run import CheckpointStore, CheckpointWriter

ELEMENTS = 400_000


def arrays(step: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    base = np.arange(ELEMENTS, dtype=np.float32)
    weights = {"a": (base * step).reshape(-1, 100), "b": np.float32(step) - base[:777]}
    optimizer = {f"a|moment|0:{ELEMENTS}": base + step, "b|moment|0:777": base[:777] * -step}
    return weights, optimizer


def main(folder: Path) -> None:
    store = CheckpointStore(folder)
    newest = store.newest_good()
    step = newest.step if newest else 0
    policy = Checkpoints(keep_last=2, keep_best=1, keep_hourly=True)
    writer = CheckpointWriter(store, policy=policy)
    while True:
        step += 1
        writer.start(step, *arrays(step), {"step": step}, validation_loss=abs(step - 20) + 1.0)
        writer.wait()
        print(step, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
