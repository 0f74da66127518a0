"""Checkpoints of a small model, each of other values, for tests of folders and disks."""

from __future__ import annotations

from pathlib import Path

import torch

from windtunnel.checkpoint import CheckpointStore, Facts, Saver, Slice
from windtunnel.recipe import Checkpoints


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


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
