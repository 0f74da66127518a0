"""KV cache with independent slots, and the forward pass that reads and extends it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .fused import norm
from .gpt import GPT


class KVCache:
    """Keys and values of up to `slots` sequences of at most `capacity` tokens each.

    Slots are independent: each has its own length, so that sequences can join and leave a running
    batch. Memory is slots * capacity * shape.kv_bytes_per_token.
    """

    def __init__(self, model: GPT, slots: int, capacity: int | None = None) -> None:
        shape = model.shape
        self.capacity = min(capacity or shape.sequence, shape.sequence)
        device = model.head.weight.device
        size = (shape.layers, slots, self.capacity, shape.kv_heads, shape.head_dim)
        self.keys = torch.zeros(size, dtype=model.compute, device=device)
        self.values = torch.zeros(size, dtype=model.compute, device=device)
        self.lengths = torch.zeros(slots, dtype=torch.long, device=device)

    def reset(self, slot: int) -> None:
        """Empty a slot so that another sequence can use it."""
        self.lengths[slot] = 0


@torch.inference_mode()
def extend(model: GPT, tokens_NT: Tensor, slots_N: Tensor, cache: KVCache) -> Tensor:
    """Append T tokens to each of N slots and return the logits after the last one.

    Args:
        tokens_NT: (N, T) token ids; a prompt (T > 1) or the newest token of each sequence (T = 1).
        slots_N: (N,) distinct slots, on the cache's device.

    Returns:
        (N, vocab) fp32 softcapped logits. The caller keeps lengths within `cache.capacity`.
    """
    T = tokens_NT.size(1)
    start_N = cache.lengths[slots_N]
    position_NT = start_N[:, None] + torch.arange(T, device=tokens_NT.device)
    cos, sin = (t[position_NT][:, :, None, :] for t in (model.cos, model.sin))
    S = int(position_NT.max()) + 1
    key_position = torch.arange(S, device=tokens_NT.device)
    distance_NTS = position_NT[:, :, None] - key_position
    rows = slots_N[:, None]

    embedded, extras = model.look_up(tokens_NT)
    extra_of = dict(zip(model.shape.value_layers, extras, strict=True))
    x = first = norm(embedded)
    for i, block in enumerate(model.layers()):
        x = (model.residual_scale[i] * x.float() + model.embedding_mix[i] * first.float()).to(x.dtype)
        attention = block.attention
        q, k, v = attention.project(norm(x), extra_of.get(i), cos, sin)
        cache.keys[i].index_put_((rows, position_NT), k)
        cache.values[i].index_put_((rows, position_NT), v)
        mask = distance_NTS >= 0
        if attention.window is not None:
            mask &= distance_NTS <= attention.window
        mixed = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            cache.keys[i, slots_N, :S].transpose(1, 2),
            cache.values[i, slots_N, :S].transpose(1, 2),
            attn_mask=mask[:, None],
            enable_gqa=attention.heads != attention.kv_heads,
        )
        x = x + attention.output(mixed.transpose(1, 2).flatten(2))
        x = x + block.mlp(norm(x))
    cache.lengths[slots_N] = start_N + T
    return model.logits(norm(x[:, -1:]))[:, 0]
