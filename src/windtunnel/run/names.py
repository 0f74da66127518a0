"""Names of the metrics that a training run logs: what writers write, bands watch and views show."""

from __future__ import annotations

import re
from collections.abc import Mapping

LOSS = "loss"
VALIDATION_LOSS = "validation_loss"
BITS_PER_BYTE = "validation_bits_per_byte"
LEARNING_RATE = "learning_rate"
GRADIENT_NORM = "gradient_norm"
STEP_SECONDS = "step_seconds"
TOKENS_PER_SECOND = "tokens_per_second"
MFU = "mfu"
MEMORY_SHARE = "memory_share"
MEMORY_GIB = "memory_gib"
GPU_UTILISATION = "gpu_utilisation"
DATA_WAIT = "data_wait_share"
DOLLARS = "dollars"
DOLLARS_FORECAST = "dollars_forecast"
PROGRESS = "progress"
EPOCH = "epoch"
# Recursive models only.
OBJECTIVE = "objective"
REFINEMENT = "refinement"
ORDER = "supervision_order"
HALTING_LOSS = "halting_loss"
HALTING_ACCURACY = "halting_accuracy"
SOLVED = "solved"
STEP_BITS_PER_BYTE = "bits_per_byte"

METRICS: dict[str, str] = {
    LOSS: "training loss, nats per token, mean over ranks; of a recursive model after its last supervision step",
    VALIDATION_LOSS: "validation loss, nats per token, reduced over ranks",
    BITS_PER_BYTE: "validation bits per byte of text, reduced over ranks",
    LEARNING_RATE: "share of the peak learning rate, 0 to 1",
    GRADIENT_NORM: "norm of the gradient before clipping, over all ranks; of several updates a step their root mean square",
    STEP_SECONDS: "seconds per optimizer step",
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
    OBJECTIVE: "what a recursive model's gradient is of: weighted losses and the reward for improvement; no measure of quality",
    REFINEMENT: "percent by which the training loss after the last supervision step is below that after the first",
    ORDER: "1 where each supervision step's training loss is below that of the one before, else 0",
    HALTING_LOSS: "binary cross-entropy of the halting head, nats",
    HALTING_ACCURACY: "share of samples of which the halting head is right, 0 to 1",
    SOLVED: "share of training samples answered wholly right after the last supervision step, 0 to 1",
}

STEP_METRICS: dict[str, str] = {
    LOSS: "training loss after this supervision step, nats per token: true cross-entropy, not weighted",
    VALIDATION_LOSS: "validation loss after this supervision step, nats per token",
    STEP_BITS_PER_BYTE: "validation bits per byte of text after this supervision step",
    SOLVED: "share of training samples answered wholly right after this supervision step, 0 to 1",
    GRADIENT_NORM: "gradient norm of the update after this supervision step, before clipping",
}
"""Metrics that a recursive model has for each supervision step; their names are `of_step(name, i)`."""

_OF_STEP = re.compile(r"(.+)_step_(\d+)")


def of_step(name: str, step: int) -> str:
    """The metric `name` of a supervision step, counted from 0: 'loss_step_0'."""
    return f"{name}_step_{step}"


def described(name: str) -> str | None:
    """What a metric means, also one of a supervision step; None: there is none of that name."""
    found = _OF_STEP.fullmatch(name)
    return STEP_METRICS.get(found[1]) if found else METRICS.get(name)


def step_values(metrics: Mapping[str, float], name: str) -> list[float]:
    """The values of a metric for the supervision steps 0, 1, ...: as many as are there."""
    values: list[float] = []
    while (key := of_step(name, len(values))) in metrics:
        values.append(metrics[key])
    return values
