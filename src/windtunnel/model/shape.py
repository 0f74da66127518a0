"""Shapes, parameters and FLOPs of the depth-dial GPT and of its recursive variants as plain arithmetic; no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from windtunnel.recipe import GPTModel, Recipe, UserError

from .blocks import Block, Linear, masked_flops, training_flops


@dataclass(frozen=True)
class RecursionShape:
    """How often the blocks of a recursive GPT are applied; see `windtunnel.recipe.Recursion` for the fields.

    Attributes:
        inference: supervision steps when the model is used; None: as many as trained.
    """

    scheme: str
    loops: int
    cycles: int
    supervision: int
    gradient_cycles: str = "all"
    halting: bool = False
    inference: int | None = None

    @property
    def cycle_passes(self) -> int:
        """Count the applications of each block in one cycle: the latent updates, and the answer's where there is a latent."""
        return self.loops if self.scheme == "looped" else self.loops + 1

    @property
    def passes(self) -> int:
        """Count the applications of each block in one supervision step."""
        return self.cycles * self.cycle_passes

    @property
    def gradient_passes(self) -> int:
        """Return those of `passes` that have a gradient."""
        return self.passes if self.gradient_cycles == "all" else self.cycle_passes


@dataclass(frozen=True)
class GPTShape:
    """Every dimension of a GPT. `vocab` counts tokens in use, `padded_vocab` rows of the tables.

    Attributes:
        causal: False where every position sees all others.
        qk_gain: queries and keys are normed and scaled by this, each.
        recursion: None for the plain GPT.
    """

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
    causal: bool = True
    qk_gain: float = 1.2
    recursion: RecursionShape | None = None

    @property
    def mixes_embedding(self) -> bool:
        """Return whether each layer rescales the residual stream and mixes the embedding in by two scalars."""
        return self.recursion is None or self.recursion.scheme == "looped"

    @property
    def applications(self) -> int:
        """Count the applications of a block in a whole forward pass: all layers, passes and supervision steps."""
        r = self.recursion
        return self.layers if r is None else self.layers * r.passes * r.supervision

    def with_supervision(self, steps: int | None) -> GPTShape:
        """Return the same model with another number of supervision steps; None changes nothing.

        Raises:
            UserError: the model does not recurse.
        """
        if steps is None:
            return self
        if self.recursion is None:
            raise UserError("this model has no supervision steps: it does not recurse", "leave --supervision out")
        return replace(self, recursion=replace(self.recursion, supervision=steps))

    @property
    def supervision(self) -> int:
        """Return the supervision steps that the model is trained with, each of which answers; 0 where it answers once."""
        return 0 if self.recursion is None else self.recursion.supervision

    @property
    def kv_dim(self) -> int:
        """Return the channels of the keys (and of the values) of one layer."""
        return self.kv_heads * self.head_dim

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Return the layers' matrices and attention; layers that are alike are one object."""
        kinds: dict[tuple[int, bool], Block] = {}
        for i, window in enumerate(self.windows):
            kind = (window, i in self.value_layers)
            kinds.setdefault(kind, self._block(*kind))
        return tuple(kinds[window, i in self.value_layers] for i, window in enumerate(self.windows))

    def _block(self, window: int, has_values: bool) -> Block:
        widths = {"query": self.dim, "key": self.kv_dim, "value": self.kv_dim, "output": self.dim}
        linears = [Linear(name, "attention", self.dim, width) for name, width in widths.items()]
        linears += [Linear("value_gate", "attention", GATE_CHANNELS, self.kv_heads)] if has_values else []
        linears += [Linear(name, "mlp", self.dim, self.hidden) for name in (("up", "gate") if self.mlp == "swiglu" else ("up",))]
        linears.append(Linear("down", "mlp", self.hidden, self.dim))
        return Block(
            dim=self.dim, heads=self.heads, kv_heads=self.kv_heads, qk_head_dim=self.head_dim, v_head_dim=self.head_dim,
            hidden=self.hidden, experts=None, mla=None, window=window, linears=tuple(linears), norms=(),
        )  # fmt: skip

    @cached_property
    def matrix_parameters(self) -> int:
        """Count the parameters of the blocks' matrices: attention, MLP and value gates."""
        return sum(block.matrix_parameters for block in self.blocks)

    @property
    def table_parameters(self) -> int:
        """Count what is looked up, not multiplied: token and value embeddings, and places where nothing is causal."""
        places = 0 if self.causal else self.sequence * self.dim
        return self.padded_vocab * (self.dim + len(self.value_layers) * self.kv_dim) + places

    @property
    def head_parameters(self) -> int:
        """Count the parameters of the output head."""
        return self.padded_vocab * self.dim

    @property
    def parameters(self) -> int:
        """Count all parameters, the two scalars a layer and the halting head included."""
        scalars = 2 * self.layers if self.mixes_embedding else 0
        halting = self.dim + 1 if self.recursion is not None and self.recursion.halting else 0
        return self.matrix_parameters + self.table_parameters + self.head_parameters + scalars + halting

    @property
    def scaling_parameters(self) -> int:
        """Count matrices and head: what token counts scale with (nanochat's scaling study, January 2026)."""
        return self.matrix_parameters + self.head_parameters

    @property
    def flops_per_token(self) -> float:
        """Return the training FLOPs a token, forward and backward: 6 a multiplied parameter + attention (PaLM, appendix B).

        Attention is counted as 12 * heads * head_dim * window, that is without halving it for
        causality: the convention that published MFU figures use. Under recursion every pass counts,
        those without a gradient a third (forward only), and the head after every supervision step.
        """
        head = 6.0 * self.head_parameters
        return self._graded_passes * self._pass_flops + self._supervised * head

    @property
    def masked_flops_per_token(self) -> float:
        """Return what of those FLOPs no kernel computes: attention to positions after a token, none where all see all."""
        return self._graded_passes * masked_flops(self.blocks, self.sequence) if self.causal else 0.0

    @property
    def _supervised(self) -> int:
        """Tell how often a token's loss is counted in a step."""
        return max(1, self.supervision)

    @property
    def _graded_passes(self) -> float:
        """Return the passes of training through all blocks, those without a gradient a third."""
        if self.recursion is None:
            return 1.0
        r = self.recursion
        return r.supervision * (r.gradient_passes + (r.passes - r.gradient_passes) / 3)

    @property
    def forward_flops_per_token(self) -> float:
        """Return the FLOPs a token of the model in use: every pass of every supervision step, and the head once."""
        passes = 1 if self.recursion is None else self.recursion.passes * self.recursion.supervision
        return self._pass_flops * passes / 3 + 2.0 * self.head_parameters

    @cached_property
    def _pass_flops(self) -> float:
        """Return one pass through all blocks, forward and backward."""
        return training_flops(self.blocks, self.sequence)

    def kv_bytes_per_token(self, element_bytes: int = 2) -> int:
        """Return the bytes of KV cache one token takes: every application of a block has keys and values of its own."""
        return 2 * self.applications * self.kv_dim * element_bytes


GATE_CHANNELS = 12


def recipe_shape(recipe: Recipe, vocab: int) -> GPTShape:
    """Return the shape of a recipe's model, plain or recursive, for a vocabulary of `vocab` tokens (BOS included).

    Raises:
        UserError: as `gpt_shape`; value embeddings in a scheme that has no place for them.
    """
    shape = gpt_shape(recipe.gpt, vocab)
    if recipe.trm is None:
        return shape
    r = recipe.trm
    if shape.value_layers and r.scheme != "looped":
        raise UserError(
            f"model.value_embeddings=true and trm.scheme={r.scheme}: only the scheme 'looped' has value embeddings",
            "--set model.value_embeddings=false",
        )
    recursion = RecursionShape(
        r.scheme, r.loops, r.cycles, r.supervision, r.gradient_cycles, r.halting, r.inference_supervision
    )  # fmt: skip
    return replace(shape, recursion=recursion)


def gpt_shape(model: GPTModel, vocab: int) -> GPTShape:
    """Return the shape of a recipe's GPT, without recursion, for a vocabulary of `vocab` tokens (BOS included).

    Raises:
        UserError: depth is still 'auto', or kv_heads does not divide the query heads.
    """
    if model.depth == "auto":
        raise UserError("model.depth is 'auto' and has not been resolved for a rig", "plan first, or --set model.depth=12")
    # Width follows depth: one dial for the whole model.
    heads = max(1, math.ceil(model.depth * model.aspect / model.head_dim))
    kv_heads = model.kv_heads or heads
    if heads % kv_heads:
        divisors = [n for n in range(1, heads + 1) if heads % n == 0]
        problem = f"model.kv_heads: {kv_heads} does not divide the {heads} query heads of depth {model.depth}"
        raise UserError(problem, f"use one of {divisors}")
    dim = heads * model.head_dim
    if model.mlp_ratio is not None:
        hidden = max(1, round(model.mlp_ratio * dim))
    else:
        # swiglu has three matrices where relu2 has two: 8/3 keeps the parameters equal.
        hidden = 4 * dim if model.mlp == "relu2" else math.ceil(8 * dim / 3 / 128) * 128
    # A quarter of the sequence, in whole tiles of the attention kernels.
    short = math.ceil(model.sequence / 4 / 128) * 128
    if not model.causal and "S" in model.window:
        raise UserError(f"model.window={model.window}: sliding windows are for causal models", "--set model.window=L")
    # The last layer always sees everything.
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
        causal=model.causal,
        qk_gain=model.qk_gain,
    )
