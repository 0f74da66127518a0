"""The recursion and its objective written down plainly, one line per line of their definition; any dtype, any device."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from random_models import random_weights
from torch import Tensor

from windtunnel.model import GPT, Objective, build_model, gpt_shape
from windtunnel.model.shape import GPTShape, RecursionShape
from windtunnel.recipe import GPTModel

Weights = dict[str, Tensor]


def recursive_shape(vocab: int = 29, recursion: RecursionShape | None = None, **changes: object) -> GPTShape:
    """A tiny shape; `recursion` None for the plain GPT."""
    fields: dict[str, object] = {"depth": 2, "aspect": 16, "head_dim": 8, "sequence": 24, "value_embeddings": False, **changes}
    return replace(gpt_shape(GPTModel.model_validate(fields), vocab), recursion=recursion)


def random_model(shape: GPTShape, dtype: torch.dtype = torch.float64, recompute: str = "none") -> GPT:
    """Weights that are nowhere zero."""
    model = random_weights(build_model(shape, recompute=recompute), dtype)
    model.cos, model.sin = (t.to(dtype) for t in GPT.rotary(shape, torch.device("cpu")))
    return model


def norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def attention(shape: GPTShape, w: Weights, i: int, x: Tensor) -> Tensor:
    B, T, _ = x.shape
    q, k, v = (
        F.linear(x, w[f"blocks.{i}.attention.{n}.weight"]).view(B, T, -1, shape.head_dim) for n in ("query", "key", "value")
    )
    channel = torch.arange(0, shape.head_dim, 2, dtype=torch.float32)
    angle = torch.outer(torch.arange(T, dtype=torch.float32), shape.rope_base ** (-channel / shape.head_dim))
    cos, sin = angle.cos().to(x.dtype)[:, None], angle.sin().to(x.dtype)[:, None]

    def turned(t: Tensor) -> Tensor:
        a, b = t.chunk(2, -1)
        return shape.qk_gain * norm(torch.cat([a * cos - b * sin, b * cos + a * sin], -1))

    mixed = F.scaled_dot_product_attention(
        *(t.transpose(1, 2) for t in (turned(q), turned(k), v)), is_causal=shape.causal
    ).transpose(1, 2)  # fmt: skip
    return F.linear(mixed.flatten(2), w[f"blocks.{i}.attention.output.weight"])


def mlp(shape: GPTShape, w: Weights, i: int, x: Tensor) -> Tensor:
    up = F.linear(x, w[f"blocks.{i}.mlp.up.weight"])
    hidden = F.silu(F.linear(x, w[f"blocks.{i}.mlp.gate.weight"])) * up if shape.mlp == "swiglu" else torch.relu(up).square()
    return F.linear(hidden, w[f"blocks.{i}.mlp.down.weight"])


def supervision_step(shape: GPTShape, w: Weights, x: Tensor, y: Tensor, z: Tensor, twice: bool = False) -> tuple[Tensor, Tensor]:
    """(y, z) after one supervision step; `twice` norms what is normed already once more, as a block with its own norm would."""
    r = shape.recursion
    assert r is not None
    layers = range(shape.layers)

    def f_block(i: int, u: Tensor) -> Tensor:
        u = u + attention(shape, w, i, norm(u) if twice else u)
        return u + mlp(shape, w, i, norm(u))

    def f_post(u: Tensor) -> Tensor:
        for i in layers:
            u = norm(u + attention(shape, w, i, u))
            u = norm(u + mlp(shape, w, i, u))
        return u

    def f_plain(u: Tensor) -> Tensor:
        for i in layers:
            u = w["residual_scale"][i] * u + w["embedding_mix"][i] * x
            u = u + attention(shape, w, i, norm(u))
            u = u + mlp(shape, w, i, norm(u))
        return norm(u)

    if r.scheme == "layerwise":
        for i in layers:
            for c in range(r.cycles):
                y0, z0 = y, z
                for _ in range(r.loops):
                    z = z + f_block(i, norm(x + y + z))
                y = y + f_block(i, norm(y + z))
                if r.gradient_cycles == "last" and c < r.cycles - 1:
                    y, z = y0 + (y - y0).detach(), z0 + (z - z0).detach()
        return y, z
    for c in range(r.cycles):
        for _ in range(r.loops):
            if r.scheme == "two_latent":
                z = f_post(x + y + z)
            else:
                y = f_plain(y)
        if r.scheme == "two_latent":
            y = f_post(y + z)
        if r.gradient_cycles == "last" and c < r.cycles - 1:
            y, z = y.detach(), z.detach()
    return y, z


def step_losses(
    shape: GPTShape, w: Weights, idx: Tensor, targets: Tensor, steps: int, detach_from: int = 10**6, twice: bool = False,
    see: Callable[[Tensor, Tensor], None] = lambda y, z: None,
) -> list[Tensor]:  # fmt: skip
    """Mean cross-entropy after every supervision step; `see` is shown the states before they are detached."""
    assert shape.recursion is not None
    embedded = w["embedding.weight"][idx]
    x = norm(embedded if shape.causal else embedded + w["positions"][: idx.size(1)])
    y, z, losses = x, torch.zeros_like(x), []
    for i in range(steps):
        y, z = supervision_step(shape, w, x, y, z, twice)
        see(y, z)
        answer = y if shape.recursion.scheme == "looped" else norm(y)
        logits = shape.softcap * torch.tanh(F.linear(answer, w["head.weight"][: shape.vocab]) / shape.softcap)
        losses.append(F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1))
        if detach_from <= i < steps - 1:
            y, z = y.detach(), z.detach()
    return losses


def composite(losses: list[Tensor], objective: Objective) -> Tensor:
    """L of the definition."""
    total = sum(w * loss for w, loss in zip(objective.weights, losses, strict=True))
    for before, loss in itertools.pairwise(losses):
        total = total - objective.improvement_reward * (before.detach() - loss) / (before.detach() + 1e-8)
    assert isinstance(total, Tensor)
    return total / len(losses)
