"""The depth-dial GPT.

RoPE, QK norm, relu^2 or swiglu, grouped queries, untied head, softcapped logits, optional value
embeddings (ResFormer, arXiv:2410.17897) and sliding windows. Master weights are fp32; matrices
multiply in the compute dtype. Axes in names: B batch, T time, C channels (dim), H heads, D head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import attend
from .fp8 import Quantised, fp8_gated_linear, fp8_linear, fp8_mlp, fp8_swiglu, refresh_fp8
from .fused import fused_split_heads, relu_squared, split_heads, wide
from .layers import Linear, multiply, multiply_gated, rotary_tables
from .loss import capped_cross_entropy
from .products import mlp, swiglu
from .residual import GradientAmax, add_norm, last_norm, mix_norm
from .shape import GATE_CHANNELS, GPTShape
from .tables import Table, TokenOrder


class Attention(nn.Module):
    """Self-attention of one layer.

    `prepared` holds weights by name of the product in the compute dtype while they are shared between applications.
    """

    def __init__(self, shape: GPTShape, layer: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = shape.heads, shape.kv_heads, shape.head_dim
        window = shape.windows[layer]
        self.window = window if window < shape.sequence else None
        self.causal, self.gain = shape.causal, shape.qk_gain
        self.query = Linear(shape.dim, shape.dim)
        self.key = Linear(shape.dim, shape.kv_dim)
        self.value = Linear(shape.dim, shape.kv_dim)
        self.output = Linear(shape.dim, shape.dim)
        self.value_gate = Linear(GATE_CHANNELS, shape.kv_heads) if layer in shape.value_layers else None
        self.fp8: dict[str, Quantised | None] = {}
        self.prepared: dict[str, Tensor] = {}

    def products(self) -> dict[str, list[nn.Parameter]]:
        """Return the weights that are multiplied together, by name of the product."""
        return {"qkv": [self.query.weight, self.key.weight, self.value.weight], "output": [self.output.weight]}

    def qkv(self, x_BTC: Tensor, amax: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return queries, keys and values in one product (B, T, H + 2 KV, D), and the raw value gates (B, T, KV)."""
        # One product for all three: the input is read once, and quantised once.
        weights, gate = self.products()["qkv"], None
        if fp8_now(self, "qkv"):
            if self.value_gate is None:
                out = fp8_linear(x_BTC, self.fp8["qkv"], *weights, amax=amax)
            else:
                out, gate = fp8_gated_linear(x_BTC, self.fp8["qkv"], self.value_gate.weight, *weights, amax=amax)
        elif self.value_gate is None:
            out = multiply(x_BTC, *weights, matrix=self.prepared.get("qkv"))
        else:
            out, gate = multiply_gated(x_BTC, self.value_gate.weight, *weights, matrix=self.prepared.get("qkv"))
        return out.view(*x_BTC.shape[:2], -1, self.head_dim), gate

    def project(self, x_BTC: Tensor, extra_BTE: Tensor | None, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values at any positions: cos and sin broadcast to (B, T, 1, D/2). For inference."""
        qkv, gate = self.qkv(x_BTC)
        extra = None if extra_BTE is None else extra_BTE.view(*extra_BTE.shape[:2], self.kv_heads, self.head_dim)
        return split_heads(qkv, cos, sin, gate, extra, self.heads, self.kv_heads, self.gain)

    def forward(
        self, x_BTC: Tensor, extra_BTE: Tensor | None, cos_TD: Tensor, sin_TD: Tensor,
        amax: Tensor | None = None, gradient_amax: GradientAmax | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the attention's output (B, T, C) for normed states x (B, T, C) and value embeddings (B, T, E) or None."""
        qkv, gate = self.qkv(x_BTC, amax)
        extra = None if extra_BTE is None else extra_BTE.view(*extra_BTE.shape[:2], self.kv_heads, self.head_dim)
        q, k, v = fused_split_heads(qkv, cos_TD, sin_TD, gate, extra, self.heads, self.kv_heads, self.gain)
        mixed = attend(q, k, v, self.window, self.causal).flatten(2)
        if fp8_now(self, "output"):
            return fp8_linear(mixed, self.fp8["output"], self.output.weight, gradient_amax=gradient_amax)
        return multiply(mixed, self.output.weight, matrix=self.prepared.get("output"))


class MLP(nn.Module):
    """relu^2 (arXiv:2109.08668) or swiglu (arXiv:2002.05202)."""

    def __init__(self, shape: GPTShape) -> None:
        super().__init__()
        self.up = Linear(shape.dim, shape.hidden)
        self.gate = Linear(shape.dim, shape.hidden) if shape.mlp == "swiglu" else None
        self.down = Linear(shape.hidden, shape.dim)
        self.fp8: dict[str, Quantised | None] = {}
        self.prepared: dict[str, Tensor] = {}

    def products(self) -> dict[str, list[nn.Parameter]]:
        """Return the weights that are multiplied together, by name of the product."""
        up = [self.up.weight] if self.gate is None else [self.up.weight, self.gate.weight]
        return {"up": up, "down": [self.down.weight]}

    def forward(self, x_BTC: Tensor, amax: Tensor | None = None, gradient_amax: GradientAmax | None = None) -> Tensor:
        """Return the MLP's output (B, T, C) for normed states x (B, T, C)."""
        quantised = fp8_now(self, "up") and fp8_now(self, "down")
        up, down = self.prepared.get("up"), self.prepared.get("down")
        if self.gate is not None:
            weights = self.up.weight, self.gate.weight, self.down.weight
            if quantised:
                return fp8_swiglu(x_BTC, self.fp8["up"], self.fp8["down"], *weights, amax=amax, gradient_amax=gradient_amax)
            if x_BTC.is_cuda and torch.is_grad_enabled():
                return swiglu(x_BTC, *weights, up, down)
            hidden, gate = multiply(x_BTC, *weights[:2], matrix=up).chunk(2, dim=-1)
            return multiply(F.silu(gate) * hidden, self.down.weight, matrix=down)
        if quantised:
            return fp8_mlp(
                x_BTC, self.fp8["up"], self.fp8["down"], self.up.weight, self.down.weight, amax=amax, gradient_amax=gradient_amax
            )
        if x_BTC.is_cuda and torch.is_grad_enabled():
            return mlp(x_BTC, self.up.weight, self.down.weight, up, down)
        return multiply(relu_squared(multiply(x_BTC, self.up.weight, matrix=up)), self.down.weight, matrix=down)


def fp8_now(part: Attention | MLP, product: str) -> bool:
    """Return whether this product runs in fp8, which it does only while training."""
    return product in part.fp8 and part.training and torch.is_grad_enabled()


class Block(nn.Module):
    """One layer: the residual stream is rescaled and mixed with the embedding, then attention, then MLP."""

    def __init__(self, shape: GPTShape, layer: int) -> None:
        super().__init__()
        self.attention = Attention(shape, layer)
        self.mlp = MLP(shape)


def write_whole(parameter: nn.Parameter, draw: Callable[[Tensor], object]) -> None:
    """Let a draw fill a parameter where it lies."""
    draw(parameter)


# How a block attends: (block, normed states, value embeddings, amax, gradient_amax) -> (B, T, C).
Attend = Callable[[Block, Tensor, Tensor | None, Tensor | None, GradientAmax | None], Tensor]
Write = Callable[[nn.Parameter, Callable[[Tensor], object]], None]


class GPT(nn.Module):
    """Built on any device with uninitialised weights; `initialise` fills them. See `build_model`.

    Args:
        shape: every dimension.
        compute: dtype of activations and matrix products.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: GPTShape, compute: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.shape, self.compute = shape, compute
        self.embedding = Table(shape.padded_vocab, shape.dim)
        self.value_tables = nn.ModuleDict({str(i): Table(shape.padded_vocab, shape.kv_dim) for i in shape.value_layers})
        self.blocks = nn.ModuleList([Block(shape, i) for i in range(shape.layers)])
        self.head = Linear(shape.dim, shape.padded_vocab)
        if shape.mixes_embedding:
            self.residual_scale = nn.Parameter(torch.empty(shape.layers))
            self.embedding_mix = nn.Parameter(torch.empty(shape.layers))
        # Rotary positions tell distances; where nothing is causal the places themselves have to be told.
        self.positions = None if shape.causal else nn.Parameter(torch.empty(shape.sequence, shape.dim))
        cos, sin = self.rotary(shape, torch.get_default_device())
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.fp8 = False
        # Given to every lookup where tables are sharded: see `Table.forward`.
        self.after_lookups: Tensor | None = None
        self._stale = True
        self._trunk = self.trunk

    @staticmethod
    def rotary(shape: GPTShape, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return cos and sin of every position of the sequence, each (sequence, head_dim / 2) fp32."""
        return rotary_tables(shape.sequence, shape.head_dim, shape.rope_base, device)

    @torch.no_grad()
    def initialise(self, seed: int, write: Write = write_whole) -> None:
        """Set initial weights, the same for a seed and device type: matrices uniform with std 1/sqrt(dim), outputs zero.

        Args:
            seed: of what is drawn.
            write: takes a parameter and what fills a whole tensor of its shape, one after the other; it may keep a part.
        """
        self.weights_changed()
        device = self.head.weight.device
        generator = torch.Generator(device=device).manual_seed(seed)
        bound = math.sqrt(3 / self.shape.dim)

        def uniform(weight: nn.Parameter, limit: float, least: float | None = None) -> None:
            write(weight, lambda whole: whole.uniform_(-limit if least is None else least, limit, generator=generator))

        def normal(weight: nn.Parameter, spread: float) -> None:
            write(weight, lambda whole: whole.normal_(0, spread, generator=generator))

        # The order is part of the result: each draw takes the generator on. What is new is drawn behind the rest.
        normal(self.embedding.weight, 0.8)
        normal(self.head.weight, 0.001)
        for table in self.value_tables.values():
            assert isinstance(table, Table)
            uniform(table.weight, bound)
        for block in self.layers():
            attention, mlp = block.attention, block.mlp
            for layer in (attention.query, attention.key, attention.value):
                uniform(layer.weight, bound)
            # Blocks add nothing at first: the first steps train as stably at any depth.
            write(attention.output.weight, torch.zero_)
            uniform(mlp.up.weight, 0.4 * bound)
            if mlp.gate is not None:
                uniform(mlp.gate.weight, bound)
            write(mlp.down.weight, torch.zero_)
            if attention.value_gate is not None:
                uniform(attention.value_gate.weight, 0.02, least=0)
        if self.positions is not None:
            normal(self.positions, 0.8)
        if not self.shape.mixes_embedding:
            return
        depth = torch.linspace(0, 1, self.shape.layers, device=device)
        # nanochat's: the stream is a little amplified in early layers, and the embedding mixed in less in late ones.
        write(self.residual_scale, lambda whole: whole.copy_(1.15 - 0.10 * depth))
        write(self.embedding_mix, lambda whole: whole.copy_(0.20 - 0.15 * depth))

    def compile(self, *_: object, **__: object) -> None:
        """Compile the blocks as one graph, on CPUs; shapes must not change afterwards in training.

        On GPUs there is nothing to compile: the blocks run on fused kernels of their own.
        """
        if self.head.weight.device.type == "cpu":
            self._trunk = torch.compile(self.trunk, dynamic=False)

    def layers(self) -> Iterator[Block]:
        """Iterate over the blocks from the first to the last."""
        for block in self.blocks:
            assert isinstance(block, Block)
            yield block

    def parts(self) -> Iterator[Attention | MLP]:
        """Yield everything that multiplies by matrices of the blocks."""
        for block in self.layers():
            yield from (block.attention, block.mlp)

    def weights_changed(self) -> None:
        """Note that weights have changed: their fp8 copies, if there are any, are made anew before the next step."""
        self._stale = True

    def refresh(self) -> None:
        """Make the fp8 copies of weights anew, if weights have changed; to be called before a training pass."""
        # Evaluation is in the compute dtype and needs no copies.
        if self._stale and self.fp8 and torch.is_grad_enabled():
            refresh_fp8(self)
            self._stale = False

    def look_up(self, idx_BT: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return token embeddings (B, T, C) and the value embeddings (B, T, E) of each layer in shape.value_layers."""
        # Sorted once for all tables: only their gradients need it.
        tokens = TokenOrder(idx_BT, self.shape.padded_vocab) if torch.is_grad_enabled() else None
        after = self.after_lookups if torch.is_grad_enabled() else None
        extras = [table(idx_BT, self.compute, tokens, after) for table in self.value_tables.values()]
        embedded = self.embedding(idx_BT, self.compute, tokens, after)
        if self.positions is not None:
            embedded = embedded + self.positions[: idx_BT.size(1)].to(self.compute)
        return embedded, extras

    def trunk(self, embedded_BTC: Tensor, extras: list[Tensor]) -> Tensor:
        """Turn embeddings into the final normed states (B, T, C)."""
        first = last_norm(embedded_BTC, None)
        return self.stack(first, first, extras)

    def attention(
        self, block: Block, x_BTC: Tensor, extra_BTE: Tensor | None, amax: Tensor | None, gradient_amax: GradientAmax | None
    ) -> Tensor:
        """Return a block's attention over positions 0..T-1: what `stack` uses unless another is given."""
        T = x_BTC.size(1)
        return block.attention(x_BTC, extra_BTE, self.cos[:T], self.sin[:T], amax, gradient_amax)

    def stack(self, x: Tensor, first: Tensor, extras: list[Tensor], attention: Attend | None = None) -> Tensor:
        """Apply all blocks once: states x, with the normed embeddings `first` mixed in -> normed states; each (B, T, C)."""
        run = attention or self.attention
        scales, mixes = self.residual_scale.unbind(), self.embedding_mix.unbind()
        # One value embedding for every other layer.
        extra_of = dict(zip(self.shape.value_layers, extras, strict=True))
        delta: Tensor | None = None
        from_mlp = None
        for i, block in enumerate(self.layers()):
            in_fp8 = fp8_now(block.attention, "qkv")
            # Each layer's addition is made by the norm that follows it, in one pass over the stream.
            x, y, first, amax = mix_norm(x, delta, first, scales[i], mixes[i], want_amax=in_fp8, gradient_amax=from_mlp)
            from_attention, from_mlp = (GradientAmax(), GradientAmax()) if in_fp8 else (None, None)
            delta = run(block, y, extra_of.get(i), amax, from_attention)
            x, y, amax = add_norm(x, delta, want_amax=in_fp8, gradient_amax=from_attention)
            delta = block.mlp(y, amax, from_mlp)
        return last_norm(x, delta, gradient_amax=from_mlp)

    def logits(self, x_BTC: Tensor) -> Tensor:
        """Turn states into softcapped fp32 logits over the tokens in use (B, T, vocab)."""
        # Rows that fill the table up are no tokens: their logits are never made.
        raw = wide(F.linear(x_BTC, self.head.weight[: self.shape.vocab].to(x_BTC.dtype)))
        return self.shape.softcap * torch.tanh(raw / self.shape.softcap)

    def forward(self, idx_BT: Tensor, targets_BT: Tensor | None = None, reduction: str = "mean") -> Tensor:
        """Return logits (B, T, vocab), or the loss in nats over targets that are not -1.

        Args:
            idx_BT: token ids (B, T).
            targets_BT: the tokens to be predicted (B, T), -1 where there is none; None: logits are wanted.
            reduction: 'mean' over targets, 'sum', or 'none' for (B, T) with 0 where there is no target.
        """
        self.refresh()
        x = self._trunk(*self.look_up(idx_BT))
        return self._scored(x, targets_BT, reduction)

    def _scored(self, x: Tensor, targets_BT: Tensor | None, reduction: str) -> Tensor:
        """Return logits of the last norm's output, or the loss where there are targets."""
        if targets_BT is None:
            return self.logits(x)
        losses, total = capped_cross_entropy(x, self.head.weight, targets_BT, self.shape.vocab, self.shape.softcap)
        if reduction == "none":
            return losses
        return total if reduction == "sum" else total / (targets_BT >= 0).sum().clamp(min=1)
