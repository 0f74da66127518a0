"""Saves checkpoints in a loop until it is killed; every number is a function of its step. Run by test_checkpoint_kill."""

from multiprocessing.connection import Connection
from pathlib import Path

import torch

from windtunnel.checkpoint import CheckpointStore, Facts, Saver, Slice
from windtunnel.recipe import Checkpoints

ELEMENTS = 400_000


def tensors(step: int) -> dict[str, dict[str, torch.Tensor]]:
    base = torch.arange(ELEMENTS, dtype=torch.float32)
    model = {"a": (base * step).reshape(-1, 100), "b": step - base[:777]}
    return {"model": model, "optimizer": {"a.moment": base + step, "b.moment": base[:777] * -step}}


def main(folder: Path, told: Connection) -> None:
    torch.set_num_threads(1)
    store = CheckpointStore(folder)
    newest = store.newest_good()
    step = newest.step if newest else 0
    held = tensors(step)
    moment = Slice(held["optimizer"]["a.moment"], (ELEMENTS // 100, 100))
    parts = {"model": held["model"], "optimizer": {**held["optimizer"], "a.moment": moment}}
    saver = Saver(store, parts, policy=Checkpoints(keep_last=2, keep_best=1, keep_hourly=True))
    while True:
        step += 1
        for part, values in tensors(step).items():
            for name, tensor in values.items():
                held[part][name].copy_(tensor)
        saver.save(Facts(step, {"step": step}, abs(step - 20) + 1.0))
        saver.wait()
        told.send(step)
