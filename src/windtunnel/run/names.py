"""Names of the metrics that a training run logs: what writers write, bands watch and views show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windtunnel.recipe import Recipe

    from .bands import Judge

# Named, not imported: both stand above this room.
ROOMS: tuple[str, ...] = ("train", "rl")
"""Those with metrics and bands of their own, in their module `health`, imported on use."""

LOSS = "loss"
VALIDATION_LOSS = "validation_loss"
BITS_PER_BYTE = "validation_bits_per_byte"
ANSWERS_RIGHT = "answers_right"
LEARNING_RATE = "learning_rate"
GRADIENT_NORM = "gradient_norm"
STEP_SECONDS = "step_seconds"
TOKENS_PER_SECOND = "tokens_per_second"
MFU = "mfu"
MEMORY_SHARE = "memory_share"
MEMORY_GIB = "memory_gib"
GPU_UTILISATION = "gpu_utilisation"
TARGETS = "targets"
DATA_WAIT = "data_wait_share"
DOLLARS = "dollars"
DOLLARS_FORECAST = "dollars_forecast"
PROGRESS = "progress"
EPOCH = "epoch"

METRICS: dict[str, str] = {
    LOSS: "training loss, nats per target, mean over the targets of a step, all ranks",
    VALIDATION_LOSS: "validation loss, nats per token, reduced over ranks",
    BITS_PER_BYTE: "validation bits per byte of text, reduced over ranks",
    ANSWERS_RIGHT: "share of held-out questions answered rightly, 0 to 1, of those judged",
    "answers_low": "lower end of the 95 % interval of the share of right answers",
    "answers_high": "upper end of the 95 % interval of the share of right answers",
    "answers_reward": "mean reward of held-out answers, where judges give more than right or wrong",
    "answers_judged": "answers of which it is known whether they are right",
    "answers_unknown": "answers of which nothing is known",
    "answers_cut": "answers that were longer than they may be",
    LEARNING_RATE: "share of the peak learning rate, 0 to 1",
    GRADIENT_NORM: "norm of the gradient before clipping, over all ranks; of several updates a step their root mean square",
    STEP_SECONDS: "seconds per optimizer step",
    TARGETS: "tokens of a step that are predicted and learned from, all ranks",
    TOKENS_PER_SECOND: "training tokens per second, all ranks",
    MFU: "model FLOPs over the dense peak of the GPUs, 0 to 1",
    MEMORY_SHARE: "largest share of a GPU's memory in use, 0 to 1",
    MEMORY_GIB: "peak memory of a GPU, GiB",
    GPU_UTILISATION: "mean GPU utilisation, percent",
    DATA_WAIT: "share of a step's time spent waiting for data, 0 to 1",
    DOLLARS: "dollars spent so far, all sessions",
    DOLLARS_FORECAST: "dollars when the run ends",
    PROGRESS: "share of the planned run done, 0 to 1",
    EPOCH: "times the training tokens were seen",
}

_OF_STEP = re.compile(r"(.+)_step_(\d+)")


def of_step(name: str, step: int) -> str:
    """Return the metric `name` of a supervision step, counted from 0: 'loss_step_0'."""
    return f"{name}_step_{step}"


def described(name: str) -> str | None:
    """Say what a metric means, also one of a supervision step; None: there is none of that name."""
    found = _OF_STEP.fullmatch(name)
    if found is None and name in METRICS:
        return METRICS[name]
    key, table = (found[1], "STEP_METRICS") if found else (name, "METRICS")
    said = next((texts[key] for module in health_modules() if key in (texts := getattr(module, table))), None)
    begun = ((start, text) for module in health_modules() for start, text in getattr(module, "BEGINNINGS", {}).items())
    return said or next((f"{text} {name.removeprefix(start)}" for start, text in begun if name.startswith(start)), None)


def health_modules() -> list[ModuleType]:
    """Return the modules `health` of the rooms that log metrics of their own.

    Each has METRICS and STEP_METRICS, what they mean by name, and `judge(recipe, vocab)`, which returns a
    `windtunnel.run.Judge` for a recipe that has such metrics, else None. BEGINNINGS, if there, says the same of names that end
    with a word of the user's.
    """
    return [import_module(f"windtunnel.{room}.health") for room in ROOMS]


def judges_of(recipe: Recipe, vocab: int) -> tuple[Judge, ...]:
    """Return the judges of all rooms that apply to a recipe; `vocab`: tokens that its model can choose from."""
    made = [module.judge(recipe, vocab) for module in health_modules()]
    return tuple(judge for judge in made if judge is not None)


def step_values(metrics: Mapping[str, float], name: str) -> list[float]:
    """Return the values of a metric for the supervision steps 0, 1, ...: as many as are there."""
    values: list[float] = []
    while (key := of_step(name, len(values))) in metrics:
        values.append(metrics[key])
    return values


def apart(losses: Sequence[float]) -> list[str]:
    """Write numbers with three decimals, or as many more as it takes to tell neighbours apart that differ.

    NaN differs from nothing.
    """
    # Of a float32 loss further digits mean nothing.
    for digits in range(3, 7):
        texts = [f"{loss:.{digits}f}" for loss in losses]
        if all(a != b or not abs(x - y) > 0 for (a, b), (x, y) in zip(pairwise(texts), pairwise(losses), strict=True)):
            break
    return texts
