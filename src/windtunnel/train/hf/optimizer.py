"""AdamW over sharded parameters: one pass over memory, moments in fp32, bf16 or int8, weights in fp32 or bf16.

All in fp32 goes through PyTorch's fused kernel, a few launches for all weights. Whatever is kept in less
than fp32 is rounded stochastically: an update smaller than half the last bit would otherwise always be
lost, and at fine-tuning's learning rates nearly all are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

States = Literal["fp32", "bf16", "int8"]

# Elements of an int8 moment that share a scale.
BLOCK = 256
# Elements updated at a time where no compiler fuses the update: bounds its temporaries.
SLICE = 2**24


class AdamW:
    """AdamW (Loshchilov & Hutter 2019) on the local shards of named parameters.

    Args:
        parameters: the trained ones by name; each fp32 or bf16, sharded or not.
        states: precision of the two moments.
        group: ranks among which the parameters are sharded, None if they are not.
        compiled: fuse the update into one kernel.
        clip: largest norm of the gradient; larger ones are scaled down to it.
        kept: gradients are there from now on and stay where they are, for what was recorded to add to.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], *, states: States, group: dist.ProcessGroup | None = None,
        compiled: bool = False, betas: tuple[float, float] = (0.9, 0.95), eps: float = 1e-8, weight_decay: float = 0.0,
        clip: float = 1.0, kept: bool = False,
    ) -> None:  # fmt: skip
        self._parameters, self._group, self._compiled, self._clip = dict(parameters), group, compiled, clip
        self._kept: list[Tensor] = []
        for parameter in self._parameters.values() if kept else ():
            parameter.grad = torch.zeros_like(parameter)
            self._kept.append(parameter.grad)
        self._betas, self._eps, self._decay = betas, eps, weight_decay
        self.steps = 0
        self._moments = {name: _Moments(local(p), states) for name, p in self._parameters.items()}
        self._exact = states == "fp32" and all(p.dtype == torch.float32 for p in self._parameters.values())
        self._update = torch.compile(_update, dynamic=True) if compiled else _update

    def states(self) -> Iterator[tuple[str, Tensor]]:
        """Yield what a checkpoint must hold besides the weights and `steps`: this rank's tensors by name."""
        for name, moments in self._moments.items():
            for part, tensor in moments.tensors().items():
                yield f"{name}.{part}", tensor

    @torch.no_grad()
    def step(self, learning_rate: float, factor: Tensor | None = None) -> Tensor:
        """Clip, update the weights and drop the gradients, or zero them where they are kept; waits for nothing.

        Args:
            learning_rate: of this update.
            factor: () fp32 on the device, what the gradients are to be multiplied with; None: 1. Where it is 0, as in a step
                that had no target, or the norm is infinite, weights and moments stay as they are.

        Returns:
            The squared norm of the whole gradient, factor included, before clipping, () fp32, on every rank.

        Raises:
            RuntimeError: no parameter has a gradient.
        """
        gradients = {name: local(p.grad) for name, p in self._parameters.items() if p.grad is not None}
        if not gradients:
            raise RuntimeError("no parameter has a gradient: was backward() called?")
        self.steps += 1
        norms = torch._foreach_norm(list(gradients.values()), 2.0, torch.float32)
        square = torch.stack(norms).square().sum()
        if self._group is not None:
            dist.all_reduce(square, group=self._group)
        if factor is None:
            factor = torch.ones_like(square)
        square = square * factor * factor
        scale = factor * (self._clip / (square.sqrt() + 1e-6)).clamp(max=1.0)
        if self._exact:
            self._fused_step(gradients, scale, learning_rate)
        else:
            self._rounded_step(gradients, scale, learning_rate)
        if self._kept:
            torch._foreach_zero_(self._kept)
        else:
            for parameter in self._parameters.values():
                parameter.grad = None
        return square

    def _fused_step(self, gradients: dict[str, Tensor], scale: Tensor, learning_rate: float) -> None:
        names = [name for name, gradient in gradients.items() if gradient.numel()]
        # One count for each weight, because the kernel's caller adds to every one.
        done = torch.full((len(names),), float(self.steps - 1), device=scale.device).unbind()
        adamw(
            [local(self._parameters[name]).view(-1) for name in names],
            [gradients[name].reshape(-1) for name in names],
            [self._moments[name].first for name in names],
            [self._moments[name].second for name in names],
            [],
            list(done),
            fused=True, grad_scale=1 / scale, found_inf=(scale == 0).float(), amsgrad=False, lr=learning_rate,
            beta1=self._betas[0], beta2=self._betas[1], weight_decay=self._decay, eps=self._eps, maximize=False,
        )  # fmt: skip

    def _rounded_step(self, gradients: dict[str, Tensor], scale: Tensor, learning_rate: float) -> None:
        # What moments are divided by for having begun at zero is taken into factors here: a division or a root costs an
        # element as much as its bytes do. Filled on the device: a copy from the host would wait for it.
        unbias = 1 - self._betas[0] ** self.steps, math.sqrt(1 - self._betas[1] ** self.steps)
        rates = tuple(
            torch.full((), value, dtype=torch.float32, device=scale.device)
            for value in (learning_rate / unbias[0], 1 / unbias[1], 1 - learning_rate * self._decay)
        )
        constants = (*self._betas, self._eps)
        parts = [
            part
            for name, gradient in gradients.items()
            for part in self._moments[name].parts(
                local(self._parameters[name]).view(-1), gradient.reshape(-1), whole=self._compiled
            )
        ]
        seeds = torch.randint(-(2**31), 2**31 - 1, (len(parts),), dtype=torch.int32, device=scale.device)
        for seed, (w, g, m, v) in zip(seeds.unbind(), parts, strict=True):
            self._update(w, g, m, v, scale, rates, seed, constants)


def local(tensor: Tensor) -> Tensor:
    """Return this rank's shard, detached; its memory, not a copy."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class _Moments:
    """The two moments of one shard, flat."""

    def __init__(self, shard: Tensor, states: States) -> None:
        size = shard.numel()
        self._coded = states == "int8"
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}[states]
        self.first = torch.zeros(size, dtype=dtype, device=shard.device)
        self.second = torch.zeros(size, dtype=torch.uint8 if self._coded else dtype, device=shard.device)
        scales = -(-size // BLOCK) if self._coded else 0
        self.first_scale, self.second_scale = (torch.zeros(scales, device=shard.device) for _ in range(2))

    def tensors(self) -> dict[str, Tensor]:
        """Return the moments by name, for a checkpoint."""
        plain = {"first": self.first, "second": self.second}
        return plain | ({"first_scale": self.first_scale, "second_scale": self.second_scale} if self._coded else {})

    def parts(
        self, weight: Tensor, gradient: Tensor, whole: bool
    ) -> Iterator[tuple[Tensor, Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]]:
        """Yield what is updated together: weight, gradient and moments; in rows of one scale where the moments are coded."""
        size, step = weight.numel(), max(weight.numel(), 1) if whole else SLICE
        tail = size // BLOCK * BLOCK if self._coded else size
        bounds = [(start, min(start + step, tail)) for start in range(0, tail, step)] + [(tail, size)]
        for start, end in bounds:
            if start == end:
                continue
            w, g, first, second = (t[start:end] for t in (weight, gradient, self.first, self.second))
            if not self._coded:
                yield w, g, (first,), (second,)
                continue
            rows = (-1, min(BLOCK, end - start))
            scales = slice(start // BLOCK, -(-end // BLOCK))
            moments = (first.view(rows), self.first_scale[scales]), (second.view(rows), self.second_scale[scales])
            yield w.view(rows), g.view(rows), *moments


def _update(w, g, m, v, scale, rates, seed, constants):  # type: ignore[no-untyped-def]
    rate, root, shrink = rates  # the learning rate and a factor of the root, both unbiased, and what decay leaves of a weight
    beta1, beta2, eps = constants
    idle = scale == 0
    gradient = g.float() * scale
    m32 = beta1 * _decode_first(m) + (1 - beta1) * gradient
    v32 = beta2 * _decode_second(v) + (1 - beta2) * gradient * gradient
    noise = _noise(w, seed)
    _store(w, w.float() * shrink - rate * m32 / (v32.sqrt() * root + eps), noise[0], idle)
    if m[0].dtype == torch.int8:
        _encode_first(m, m32, noise[1], idle)
        _encode_second(v, v32, noise[2], idle)
    else:
        _store(m[0], m32, noise[1], idle)
        _store(v[0], v32, noise[2], idle)


def _noise(like: Tensor, seed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return three tensors of 16 random bits each, int32, which depend on the seed () int32 and an element's number alone.

    They are hashed, not drawn: one of PyTorch's draws costs more than all the rest of an update. Steps and multipliers are
    those that end MurmurHash3; products wrap, and shifts of signed numbers are masked to what unsigned ones would give.
    """
    bits = torch.arange(like.numel(), dtype=torch.int32, device=like.device).view(like.shape) * -1640531527 + seed
    bits = (bits ^ ((bits >> 16) & 0xFFFF)) * -2048144789
    bits = (bits ^ ((bits >> 13) & 0x7FFFF)) * -1028477387
    bits = bits ^ ((bits >> 16) & 0xFFFF)
    return bits & 0xFFFF, (bits >> 16) & 0xFFFF, ((bits * -1640531527) >> 16) & 0xFFFF


def _store(target: Tensor, value: Tensor, noise: Tensor, idle: Tensor) -> None:
    """Write fp32 into the target, rounded up or down with the probabilities that keep its expectation; idle: write nothing."""
    if target.dtype == torch.bfloat16:
        # bf16 is the upper half of fp32: of the lower half, noise of 16 bits carries over in proportion to its size.
        value = ((value.view(torch.int32) + noise) & -(2**16)).view(torch.float32)
    _write(target, value, idle)


def _write(target: Tensor, value: Tensor, idle: Tensor) -> None:
    target.copy_(torch.where(idle, target, value.to(target.dtype)))


# int8 moments: |code| goes with the square root of the first moment and the fourth root of the second, so that a
# block's small values keep their order of magnitude; a second moment of zero would be divided by.


def _decode_first(m: tuple[Tensor, ...]) -> Tensor:
    if m[0].dtype != torch.int8:
        return m[0].float()
    root = m[0].float() / 127
    return root * root.abs() * m[1][:, None]


def _decode_second(v: tuple[Tensor, ...]) -> Tensor:
    if v[0].dtype != torch.uint8:
        return v[0].float()
    return (v[0].float() / 255).square().square() * v[1][:, None]


def _encode_first(m: tuple[Tensor, ...], value: Tensor, noise: Tensor, idle: Tensor) -> None:
    largest = value.abs().amax(1)
    root = (value.abs() / largest.clamp(min=1e-38)[:, None]).sqrt() * 127
    _write(m[0], torch.sign(value) * torch.floor(root + noise / 2**16).clamp(max=127), idle)
    _write(m[1], largest, idle)


def _encode_second(v: tuple[Tensor, ...], value: Tensor, noise: Tensor, idle: Tensor) -> None:
    largest = value.amax(1)
    root = (value / largest.clamp(min=1e-38)[:, None]).sqrt().sqrt() * 255
    # Not below one code unless it is zero: far too small a second moment makes far too large a step.
    _write(v[0], torch.where(value > 0, torch.floor(root + noise / 2**16).clamp(1, 255), 0.0), idle)
    _write(v[1], largest, idle)
