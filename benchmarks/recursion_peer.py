"""The public TRM fork of nanochat beside ours: its model from a checkout, and its weights as ours.

What differs, and what makes it equal:
- rotary base 10,000: model.rope_base=10000; its tables are bf16, ours fp32 (`exact_tables`);
- it turns positions the other way: the halves of each query and key head change places;
- normed queries and keys are not scaled: model.qk_gain=1;
- swiglu of width 4 x dim, gate before value: model.mlp_ratio=4;
- a block norms its input, which is normed already: a change of the order of the norm's epsilon.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PRESETS = {"moderate": (3.0, 0.5), "aggressive": (5.0, 1.0), "extreme": (10.0, 2.0)}
# As its configuration has them, whatever the preset.
DETACH_FROM = 2


def settings(depth: int, sequence: int, aspect: int = 64, head_dim: int = 128) -> list[str]:
    """What a recipe of ours sets to have the fork's model."""
    return [
        f"model.depth={depth}", f"model.aspect={aspect}", f"model.head_dim={head_dim}", f"model.sequence={sequence}",
        "model.mlp=swiglu", "model.mlp_ratio=4", "model.qk_gain=1", "model.rope_base=10000", "model.value_embeddings=false",
        "trm.scheme=layerwise", "trm.loops=2", "trm.cycles=1", "trm.supervision=4",
    ]  # fmt: skip


def fork_model(folder: Path, shape: Any, preset: str, device: torch.device, exact_tables: bool = False) -> Any:
    """The fork's model of our shape with its own first weights.

    Args:
        folder: its checkout.
        exact_tables: rotary tables in fp32 rather than its bf16.
    """
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    from nanochat.gpt import GPT, GPTConfig

    r = shape.recursion
    config = GPTConfig.with_refinement_preset(
        preset, sequence_len=shape.sequence, vocab_size=shape.vocab, n_layer=shape.layers, n_head=shape.heads,
        n_kv_head=shape.kv_heads, n_embd=shape.dim, n_loops=r.loops, n_sup_train=r.supervision, T_recursion=r.cycles,
        detach_threshold=DETACH_FROM, activation_fn=shape.mlp,
    )  # fmt: skip
    with device:
        model = GPT(config)
    model.init_weights()
    if exact_tables:
        channel = torch.arange(0, shape.head_dim, 2, dtype=torch.float32, device=device)
        angle = torch.outer(
            torch.arange(model.cos.size(1), dtype=torch.float32, device=device), 10_000 ** (-channel / shape.head_dim)
        )
        model.cos, model.sin = angle.cos()[None, :, None], angle.sin()[None, :, None]
    return model


@torch.no_grad()
def fill(weights: Iterable[Tensor], seed: int) -> None:
    """With values that are nowhere zero, in their order: its first weights are, in places, and hide differences."""
    weights = list(weights)
    generator = torch.Generator(device=weights[0].device).manual_seed(seed)
    for weight in weights:
        weight.normal_(0, 1 / math.sqrt(weight.size(1)), generator=generator)


def _turned(weight: Tensor, head_dim: int) -> Tensor:
    first, second = weight.unflatten(0, (-1, 2, head_dim // 2)).unbind(1)
    return torch.stack([second, first], 1).reshape(weight.shape)


def as_ours(weights: dict[str, Tensor], shape: Any) -> dict[str, Tensor]:
    """The fork's tensors (weights or their gradients) under our names."""
    ours = {"embedding.weight": weights["transformer.wte.weight"], "head.weight": weights["lm_head.weight"]}
    for i in range(shape.layers):
        of, to = f"transformer.h.{i}.block.", f"blocks.{i}."
        for theirs, name in (("c_q", "query"), ("c_k", "key")):
            ours[f"{to}attention.{name}.weight"] = _turned(weights[f"{of}attn.{theirs}.weight"], shape.head_dim)
        ours[f"{to}attention.value.weight"] = weights[f"{of}attn.c_v.weight"]
        ours[f"{to}attention.output.weight"] = weights[f"{of}attn.c_proj.weight"]
        gate, up = weights[f"{of}mlp.c_fc.weight"].chunk(2)
        ours |= {
            f"{to}mlp.gate.weight": gate,
            f"{to}mlp.up.weight": up,
            f"{to}mlp.down.weight": weights[f"{of}mlp.c_proj.weight"],
        }
    return ours
