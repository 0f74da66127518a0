"""One step of a Llama-like model in eleven launches a layer, where transformers' own pass takes some forty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .static_batch import StaticBatch

FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Of transformers' models: norms before attention and before the feed-forward part, rotated heads, silu(gate) * up."""


@dataclass(frozen=True)
class _Product:
    """Several linear layers of the same input as one: fewer and larger matrix products."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


def fits_lean_step(model: Any) -> bool:
    """Return whether a model of transformers is made as `LeanStep` takes it to be."""
    config = model.config.get_text_config()
    return config.model_type in FAMILIES and getattr(config, "hidden_act", None) == "silu"


class LeanStep:
    """Steps of a batch through the weights of a transformers model.

    The matrices of queries, keys and values become parts of one, as do those of gate and up: the model's own parameters are
    views of it from here on. Weights that are written where they lie reach both, and no memory is taken twice.

    Args:
        model: one that `fits_lean_step`, on its device.
    """

    def __init__(self, model: Any) -> None:
        self._model = model.model
        self._layers = [
            (
                _together([layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj]),
                _together([layer.mlp.up_proj, layer.mlp.gate_proj]),
                layer,
            )
            for layer in self._model.layers
        ]
        self._head = model.get_output_embeddings()

    def __call__(self, batch: StaticBatch) -> Tensor:
        """Write a column of the batch's cache; return the logits (rows, vocab)."""
        from windtunnel.model import add_norm, attend_newest, place_heads, swiglu_forward  # Triton is there where a GPU is

        x = self._model.embed_tokens(batch.tokens)
        cos, sin = (angles[:, 0].contiguous() for angles in self._model.rotary_emb(x[:, None], batch.positions[:, None]))
        delta = None
        for (heads, up, layer), cache in zip(self._layers, batch.layers, strict=True):
            attention, before, after = layer.self_attn, layer.input_layernorm, layer.post_attention_layernorm
            query_heads = attention.q_proj.weight.size(0) // attention.head_dim
            gains = None
            if (norm := getattr(attention, "q_norm", None)) is not None:
                gains = norm.weight, attention.k_norm.weight, norm.variance_epsilon
            normed = add_norm(x, delta, before.weight, before.variance_epsilon)
            q = place_heads(heads(normed), (cos, sin), batch.column, *cache.room, query_heads, gains)
            mixed = attend_newest(q, *cache.room, batch.first, batch.column, attention.scaling)
            delta = attention.o_proj(mixed.view(len(x), -1))
            normed = add_norm(x, delta, after.weight, after.variance_epsilon)
            delta = layer.mlp.down_proj(swiglu_forward(up(normed)))
        last = self._model.norm
        logits: Tensor = self._head(add_norm(x, delta, last.weight, last.variance_epsilon))
        return logits


@torch.no_grad()
def _together(parts: Sequence[nn.Linear]) -> _Product:
    """Return the layers as one; each of them keeps its weights as a view of it."""
    # The parts become views of it: weights that are written later must reach this copy too.
    weight = torch.cat([part.weight.data for part in parts])
    bias = None if parts[0].bias is None else torch.cat([part.bias.data for part in parts])
    begun = 0
    for part in parts:
        end = begun + part.weight.size(0)
        part.weight.data = weight[begun:end]
        if bias is not None:
            part.bias.data = bias[begun:end]
        begun = end
    return _Product(weight, bias)
