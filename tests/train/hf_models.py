"""Tiny models of several families, and jobs over them on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from windtunnel.data import Batch
from windtunnel.data.packing import sequence_starts, target_rows
from windtunnel.recipe import Layout, Schedule
from windtunnel.train import HFJob, build_hf
from windtunnel.train.engine import Feed
from windtunnel.train.hf import HFEngine
from windtunnel.train.hf.build import fill_weights
from windtunnel.train.ranks import Ranks

VOCAB, SEQUENCE = 256, 32
Row = tuple[int, ...]
_BASE: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": VOCAB, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}

MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "tie_word_embeddings": False, **_BASE},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True, **_BASE},
    "qwen3": {"model_type": "qwen3", "head_dim": 16, **_BASE},
    "olmo2": {"model_type": "olmo2", **_BASE},
    "mistral": {"model_type": "mistral", "sliding_window": 8, **_BASE},
    "olmo": {"model_type": "olmo", "clip_qkv": 0.3, **_BASE},
    "olmo3": {"model_type": "olmo3", "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"], **_BASE},
    "granite": {"model_type": "granite", "logits_scaling": 2.0, **_BASE},
    "gemma": {"model_type": "gemma", "head_dim": 16, **_BASE},
    "gemma3_text": {
        "model_type": "gemma3_text", "head_dim": 16, "sliding_window": 8, "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 16, **_BASE,
    },
    "phi3": {"model_type": "phi3", "sliding_window": 8, **_BASE},
    "smollm3": {"model_type": "smollm3", "no_rope_layers": [1, 0], **_BASE},
    "seed_oss": {"model_type": "seed_oss", "head_dim": 16, "attention_dropout": 0.0, "residual_dropout": 0.0, **_BASE},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, **_BASE},
    "olmoe": {"model_type": "olmoe", "num_experts": 4, "num_experts_per_tok": 2, **_BASE},
    "qwen2_moe": {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 48, **_EXPERTS, **_BASE},
    "qwen3_moe": {"model_type": "qwen3_moe", "head_dim": 16, **_EXPERTS, **_BASE},
    "gemma2": {
        "model_type": "gemma2", "head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 0.5,
        "final_logit_softcapping": 2.0, "initializer_range": 0.1, **_BASE,
    },
    "gpt_oss": {
        "model_type": "gpt_oss", "head_dim": 16, "sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2,
        "initializer_range": 0.1, "rope_scaling": None, **_BASE,
    },
    "deepseek_v2": {
        "model_type": "deepseek_v2", "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
        "topk_method": "group_limited_greedy", "moe_intermediate_size": 32, "first_k_dense_replace": 1, "q_lora_rank": 32,
        "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
        **(_BASE | {"num_key_value_heads": 4}),
    },
    "deepseek_v3": {
        "model_type": "deepseek_v3", "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "first_k_dense_replace": 1, "q_lora_rank": 32, "kv_lora_rank": 16,
        "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, **(_BASE | {"num_key_value_heads": 4}),
    },
}  # fmt: skip

ALONE = Ranks(0, 1, torch.device("cpu"), None)


@contextmanager
def job_of(config: dict[str, Any] | str, ranks: Ranks = ALONE, **chosen: Any) -> Iterator[HFJob]:
    """A job; what is not chosen is the plainest: every weight, fp32 products, nothing recomputed or compiled."""
    plain: dict[str, Any] = {
        "lora": None, "weights": "bf16", "master": True, "states": "fp32", "recompute": "none", "compile": False,
        "shard": "full", "sequence": SEQUENCE, "seed": 7, "compute": torch.float32,
    }  # fmt: skip
    yield build_hf(MODELS[config] if isinstance(config, str) else config, ranks=ranks, **(plain | chosen))


class DrawnBatches:
    """The batch of each step is drawn by its number alone."""

    accumulation, epochs, step_sequences, wait_seconds = 1, 0.0, 1, 0.0

    def __init__(self) -> None:
        self.position = 0

    def next_batch(self) -> Batch:
        """The next of them."""
        self.position += 1
        return Batch(*batch(2, seed=self.position))

    def seek(self, position: int) -> None:
        """Any is as near as the other."""
        self.position = position

    def close(self) -> None:
        """Nothing runs."""


def engine_on(job: HFJob) -> HFEngine:
    """An engine over a job, each of whose steps has a batch of its own."""
    layout = Layout(job.ranks.world, 2, 1, SEQUENCE, "fp32", False, "cpu")
    weights = partial(fill_weights, job.network.model, job.ranks.device, 7, None)
    feed = Feed(DrawnBatches(), list, VOCAB, np.ones(VOCAB))
    return HFEngine(layout, job.ranks, feed, job, rate=1e-3, schedule=Schedule(), seed=7, weights=weights)


def batch(rows: int = 4, sequence: int = SEQUENCE, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random tokens and the ones after them."""
    tokens = torch.randint(0, VOCAB, (rows, sequence + 1), generator=torch.Generator().manual_seed(seed))
    return tokens[:, :-1], tokens[:, 1:]


def drawn(lengths: Row, seed: int = 0) -> list[Tensor]:
    """Documents, each with one token more, so that every position has a target."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, VOCAB, (length + 1,), generator=generator) for length in lengths]


def packed(rows: list[list[Tensor]], width: int, *, known: bool = True) -> Batch:
    """Documents in sequences of `width`, padded; `known`: with what the loader has read on the host."""
    tokens, targets = torch.zeros(len(rows), width, dtype=torch.int64), torch.full((len(rows), width), -1)
    positions = torch.zeros_like(tokens)
    for row, found in enumerate(rows):
        at = 0
        for document in found:
            there = slice(at, at + len(document) - 1)
            tokens[row, there], targets[row, there] = document[:-1], document[1:]
            positions[row, there] = torch.arange(len(document) - 1)
            at = there.stop
        positions[row, at:] = torch.arange(width - at)
    names = (positions == 0).cumsum(1) - 1
    if not known:
        return Batch(tokens, targets, positions, names)
    starts, extent = (torch.from_numpy(array) for array in sequence_starts(positions.numpy()))
    learned = torch.from_numpy(target_rows(targets.numpy().astype(np.int32).view(np.uint32)))
    return Batch(tokens, targets, positions, names, cu_seqlens=starts, extent=extent, target_rows=learned)


def full(tensor: Tensor) -> Tensor:
    """A whole copy of a perhaps sharded tensor."""
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


def weights_of(job: HFJob) -> dict[str, Tensor]:
    """Every parameter, whole."""
    return {name: full(p) for name, p in job.network.model.named_parameters()}


def losses_of(job: HFJob, steps: int, rate: float = 3e-3, rows: int = 4) -> list[float]:
    """Mean losses of some steps on one batch."""
    x, y = batch(rows)
    sums = [job.step([(x, y)], y.numel(), rate) for _ in range(steps)]
    return [float(s[0] / s[1]) for s in sums]
