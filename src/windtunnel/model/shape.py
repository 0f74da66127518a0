"""Shapes, parameters and FLOPs of the depth-dial GPT as plain arithmetic; no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from windtunnel.recipe import GPTModel, UserError


@dataclass(frozen=True)
class GPTShape:
    """Every dimension of a GPT. `vocab` counts tokens in use, `padded_vocab` rows of the tables."""

    layers: int
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    mlp: str
    vocab: int
    padded_vocab: int
    sequence: int
    value_layers: tuple[int, ...]
    windows: tuple[int, ...]
    softcap: float
    rope_base: float

    @property
    def kv_dim(self) -> int:
        """Channels of the keys (and of the values) of one layer."""
        return self.kv_heads * self.head_dim

    @property
    def matrix_parameters(self) -> int:
        """Parameters of the blocks' matrices: attention, MLP and value gates."""
        attention = self.dim * (2 * self.dim + 2 * self.kv_dim)
        mlp = (3 if self.mlp == "swiglu" else 2) * self.dim * self.hidden
        return self.layers * (attention + mlp) + len(self.value_layers) * GATE_CHANNELS * self.kv_heads

    @property
    def table_parameters(self) -> int:
        """Parameters that are looked up, not multiplied: token and value embeddings."""
        return self.padded_vocab * (self.dim + len(self.value_layers) * self.kv_dim)

    @property
    def head_parameters(self) -> int:
        """Parameters of the output head."""
        return self.padded_vocab * self.dim

    @property
    def parameters(self) -> int:
        """All parameters, the two scalars a layer included."""
        return self.matrix_parameters + self.table_parameters + self.head_parameters + 2 * self.layers

    @property
    def scaling_parameters(self) -> int:
        """Matrices and head: what token counts scale with (nanochat's scaling study, January 2026)."""
        return self.matrix_parameters + self.head_parameters

    @property
    def flops_per_token(self) -> float:
        """Training FLOPs a token, forward and backward: 6 a multiplied parameter + attention (PaLM, appendix B).

        Attention is counted as 12 * heads * head_dim * window, that is without halving it for
        causality: the convention that published MFU figures use.
        """
        attention = sum(12 * self.heads * self.head_dim * min(w, self.sequence) for w in self.windows)
        return 6.0 * (self.matrix_parameters + self.head_parameters) + attention

    def kv_bytes_per_token(self, element_bytes: int = 2) -> int:
        """Bytes of KV cache one token takes over all layers."""
        return 2 * self.layers * self.kv_dim * element_bytes


GATE_CHANNELS = 12


def gpt_shape(model: GPTModel, vocab: int) -> GPTShape:
    """The shape of a recipe's GPT for a vocabulary of `vocab` tokens (BOS included).

    Raises:
        UserError: depth is still 'auto', or kv_heads does not divide the query heads.
    """
    if model.depth == "auto":
        raise UserError("model.depth is 'auto' and has not been resolved for a rig", "plan first, or --set model.depth=12")
    heads = max(1, math.ceil(model.depth * model.aspect / model.head_dim))
    kv_heads = model.kv_heads or heads
    if heads % kv_heads:
        divisors = [n for n in range(1, heads + 1) if heads % n == 0]
        problem = f"model.kv_heads: {kv_heads} does not divide the {heads} query heads of depth {model.depth}"
        raise UserError(problem, f"use one of {divisors}")
    dim = heads * model.head_dim
    # swiglu has three matrices where relu2 has two: 8/3 keeps the parameters equal.
    hidden = 4 * dim if model.mlp == "relu2" else math.ceil(8 * dim / 3 / 128) * 128
    short = math.ceil(model.sequence / 4 / 128) * 128
    pattern = [model.window[i % len(model.window)] for i in range(model.depth - 1)] + ["L"]
    return GPTShape(
        layers=model.depth,
        dim=dim,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=model.head_dim,
        hidden=hidden,
        mlp=model.mlp,
        vocab=vocab,
        padded_vocab=math.ceil(vocab / model.vocab_pad) * model.vocab_pad,
        sequence=model.sequence,
        # Alternating layers, the last one included.
        value_layers=tuple(i for i in range(model.depth) if i % 2 == (model.depth - 1) % 2) if model.value_embeddings else (),
        windows=tuple(model.sequence if c == "L" else min(short, model.sequence) for c in pattern),
        softcap=model.softcap,
        rope_base=model.rope_base,
    )
