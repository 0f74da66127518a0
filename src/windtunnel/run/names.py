"""Names of the metrics that a training run logs: what writers write, bands watch and views show."""

from __future__ import annotations

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

METRICS: dict[str, str] = {
    LOSS: "training loss, nats per token, mean over ranks",
    VALIDATION_LOSS: "validation loss, nats per token, reduced over ranks",
    BITS_PER_BYTE: "validation bits per byte of text, reduced over ranks",
    LEARNING_RATE: "share of the peak learning rate, 0 to 1",
    GRADIENT_NORM: "norm of the gradient before clipping, over all ranks",
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
}
