"""A tiny learner on a CPU, and what its engine loads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from windtunnel.recipe import LoRA
from windtunnel.rl import Publisher, publish_weights
from windtunnel.train import HFJob, Ranks, build_hf

VOCAB = 128
CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": VOCAB, "max_position_embeddings": 64, "tie_word_embeddings": False,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None,
}  # fmt: skip
ALONE = Ranks(0, 1, torch.device("cpu"), None)
CANARY = torch.randint(0, VOCAB, (3, 24), generator=torch.Generator().manual_seed(5))


@contextmanager
def learner(ranks: Ranks = ALONE, dtype: torch.dtype = torch.float32, adapter: bool = False, **config: Any) -> Iterator[HFJob]:
    """A job with noise in its weights, the same on every rank."""
    job = build_hf(
        CONFIG | config, lora=LoRA(rank=2) if adapter else None, weights="bf16", master=True, states="fp32", recompute="none",
        compile=False, shard="full", ranks=ranks, sequence=32, seed=7, compute=dtype,
    )  # fmt: skip
    with torch.no_grad():
        for number, (name, parameter) in enumerate(job.network.named_parameters()):
            if ".lora_B" in name:  # zero at first
                parameter.add_(0.01 * (1 + number % 3))
    yield job


def train(job: HFJob, steps: int = 2) -> None:
    """Steps on one batch of the canary's tokens; every rank takes the same rows."""
    x, y = CANARY[:, :-1].contiguous(), CANARY[:, 1:].contiguous()
    for _ in range(steps):
        job.step([(x, y)], y.numel() * job.ranks.world, 3e-3)


def publish(job: HFJob, publisher: Publisher, version: int, dtype: torch.dtype = torch.float32) -> Path:
    """One version, as training publishes it."""
    path = publish_weights(job, publisher, version, dtype=dtype, canary=CANARY)
    assert path is not None
    return path


def tensors(number: int = 6, size: int = 100) -> Iterator[tuple[str, Tensor]]:
    """Named tensors of their own values."""
    for i in range(number):
        yield f"layers.{i}.weight", torch.full((size,), float(i))
