"""KV cache with independent slots, and the forward pass that reads and extends it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from windtunnel.recipe import UserError

from .gpt import GPT, Block
from .recursive import RecursiveGPT
from .residual import last_norm

MOST_SPAN = 3
"""Slots that are read for one that is used, at most: a copy reads each of its own twice and writes it once."""


class KVCache:
    """Keys and values of up to `slots` sequences of at most `capacity` tokens each.

    Slots are independent: each has its own length, so that sequences can join and leave a running
    batch. Memory is slots * capacity * shape.kv_bytes_per_token, of as many supervision steps as the model is used with.

    Raises:
        UserError: the model is not causal: what it says of a position changes with every token that follows.
    """

    def __init__(self, model: GPT, slots: int, capacity: int | None = None) -> None:
        shape = model.shape
        if not shape.causal:
            raise UserError(
                "this model is not causal: it answers whole sequences and cannot go on with a text",
                "windtunnel evaluate RUN says how many puzzles it solves",
            )
        self.supervision = 1
        if isinstance(model, RecursiveGPT):
            # Fixed here: another number of steps has another number of keys and values.
            self.supervision = model.supervision
            shape = shape.with_supervision(model.supervision)
        # Rotary positions are known up to the sequence that the model was trained with.
        self.capacity = min(capacity or shape.sequence, shape.sequence)
        device = model.head.weight.device
        size = (shape.applications, slots, self.capacity, shape.kv_heads, shape.head_dim)
        self.keys = torch.zeros(size, dtype=model.compute, device=device)
        self.values = torch.zeros(size, dtype=model.compute, device=device)
        # Known here without asking the device.
        self.lengths = [0] * slots

    def reset(self, slot: int) -> None:
        """Empty a slot so that another sequence can use it."""
        self.lengths[slot] = 0


@torch.no_grad()
def lay_out(model: GPT) -> None:
    """Lay a model's weights out for generating, where they are: in the compute dtype, those multiplied together in one matrix.

    On CPUs the matrices lie transposed in memory: products of few rows are faster so, and a row's result does not depend on
    the number of rows from two on. The model must not be trained afterwards.
    """
    on_cpu = model.head.weight.device.type == "cpu"

    def laid(matrix: Tensor) -> Tensor:
        matrix = matrix.to(model.compute)
        return matrix.t().contiguous().t() if on_cpu else matrix

    # On GPUs a recursive model prepares its weights itself, for each answer anew.
    for part in model.parts() if on_cpu or not isinstance(model, RecursiveGPT) else ():
        for name, weights in part.products().items():
            part.prepared[name] = matrix = laid(torch.cat([*weights]))
            for weight, rows in zip(weights, matrix.split([len(weight) for weight in weights]), strict=True):
                weight.data = rows
    model.head.weight.data = laid(model.head.weight.data)
    for weight in model.parameters():
        if weight.ndim == 2:
            weight.data = weight.data.to(model.compute)


@torch.inference_mode()
def extend(model: GPT, tokens_NT: Tensor, slots: Sequence[int], cache: KVCache) -> Tensor:
    """Append T tokens to each of N slots and return the logits after the last one.

    Args:
        model: whose keys and values the cache holds.
        tokens_NT: (N, T) token ids; a prompt (T > 1) or the newest token of each sequence (T = 1).
        slots: N distinct ones.
        cache: of keys and values, to which the tokens' are added.

    Returns:
        (N, vocab) fp32 softcapped logits. The caller keeps lengths within `cache.capacity`.
    """
    attention = _CachedAttention(model, tokens_NT.size(1), slots, cache)
    if isinstance(model, RecursiveGPT):
        inputs = model.read(tokens_NT)
        carry = model.begin(inputs)
        for _ in range(cache.supervision):
            carry = model.advance(inputs, carry, attention)
        x = model.answer(tuple(state[:, -2:] for state in carry))
    else:
        embedded, extras = model.look_up(tokens_NT)
        first = last_norm(embedded, None)
        x = model.stack(first, first, extras, attention)[:, -2:]
    assert attention.applied == cache.keys.size(0), "every application of a block has its place in the cache"
    # Of the last two positions: the head's product then has two rows or more, as in a step of several sequences.
    logits = model.logits(x)[:, -1]
    for slot, start in zip(slots, attention.starts, strict=True):
        cache.lengths[slot] = start + tokens_NT.size(1)
    return logits


class _CachedAttention:
    """Attention over a cache, called once for every application of a block, always in the same order.

    Each application has keys and values of its own: under recursion those of a position differ from pass to pass.
    They are written where they stay, and read there: slots that follow each other are a view of the cache, and where others lie
    between them these are attended over too, by no query of anybody's. Only of few slots far apart a copy is made.
    """

    def __init__(self, model: GPT, T: int, slots: Sequence[int], cache: KVCache) -> None:
        device = cache.keys.device
        self.starts = [cache.lengths[slot] for slot in slots]
        slots_N = torch.tensor(slots, device=device)
        self.cache, self.rows = cache, slots_N[:, None]
        self.position_NT = torch.tensor(self.starts, device=device)[:, None]
        if T > 1:
            self.position_NT = self.position_NT + torch.arange(T, device=device)
        self.cos, self.sin = (t[self.position_NT][:, :, None, :] for t in (model.cos, model.sin))
        self.length = max(self.starts) + T
        self.distance_NTS = self.position_NT[:, :, None] - torch.arange(self.length, device=device)
        self.masks: dict[int | None, Tensor] = {}
        self.applied = 0
        first, span = min(slots), max(slots) + 1 - min(slots)
        self.read: slice | Tensor = slice(first, first + span)
        self.inside: Tensor | None = None
        if [*slots] != [*range(first, first + span)]:
            if T == 1 and span <= MOST_SPAN * len(set(slots)) == MOST_SPAN * len(slots):
                self.inside, self.span = slots_N - first, span
            else:
                self.read = slots_N

    def __call__(self, block: Block, x: Tensor, extra: Tensor | None, *_: object) -> Tensor:
        attention, cache, i = block.attention, self.cache, self.applied
        self.applied += 1
        q, k, v = attention.project(x, extra, self.cos, self.sin)
        # Written into the cache before attention reads it: the new tokens see themselves too.
        cache.keys[i].index_put_((self.rows, self.position_NT), k)
        cache.values[i].index_put_((self.rows, self.position_NT), v)
        if self.inside is not None:
            q = q.new_zeros(self.span, *q.shape[1:]).index_copy_(0, self.inside, q)
        mixed = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            cache.keys[i, self.read, : self.length].transpose(1, 2),
            cache.values[i, self.read, : self.length].transpose(1, 2),
            attn_mask=self.mask(attention.window),
            enable_gqa=attention.heads != attention.kv_heads,
        )
        if self.inside is not None:
            mixed = mixed[self.inside]
        out: Tensor = attention.output(mixed.transpose(1, 2).flatten(2))
        return out

    def mask(self, window: int | None) -> Tensor:
        """Return which keys each query sees, (N, 1, T, S); the rows of nobody see all."""
        if window not in self.masks:
            mask = self.distance_NTS >= 0
            if window is not None:
                mask &= self.distance_NTS <= window
            if self.inside is not None:
                mask = mask.new_ones(self.span, *mask.shape[1:]).index_copy_(0, self.inside, mask)
            self.masks[window] = mask[:, None]
        return self.masks[window]
