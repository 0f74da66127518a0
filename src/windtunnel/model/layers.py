"""Building blocks of the GPT: linear layers over fp32 master weights, and rotary positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .products import gated_linear, linear


def multiply(x: Tensor, *weights: Tensor, matrix: Tensor | None = None) -> Tensor:
    """Return x (..., in) times each weight (out, in) transposed, side by side, in x's precision: master weights stay fp32.

    Args:
        x: the input.
        *weights: each (out, in).
        matrix: on GPUs, the weights below one another in x's dtype, where the caller has them.
    """
    if x.is_cuda and torch.is_grad_enabled():
        return linear(x, *weights, matrix=matrix)
    if matrix is not None:
        return F.linear(x, matrix)
    weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    return F.linear(x, weight.to(x.dtype))


def multiply_gated(x: Tensor, gate: Tensor, *weights: Tensor, matrix: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return `multiply`, and x's first channels times gate (out, channels) transposed."""
    if x.is_cuda and torch.is_grad_enabled():
        return gated_linear(x, gate, *weights)
    return multiply(x, *weights, matrix=matrix), multiply(x[..., : gate.size(1)], gate)


class Linear(nn.Module):
    """A matrix without bias, (out, in)."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(fan_out, fan_in))

    def forward(self, x: Tensor) -> Tensor:
        """Return x (..., in) times the weight transposed: (..., out)."""
        return multiply(x, self.weight)


def rotary_tables(positions: int, head_dim: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cos and sin, each (positions, head_dim / 2) in fp32, of rotary positions (arXiv:2104.09864)."""
    if device.type == "meta":
        # torch.arange would import sympy there, which takes longer than building a small model.
        size = positions, head_dim // 2
        return torch.empty(size, device=device), torch.empty(size, device=device)
    channel = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device)
    angle = torch.outer(torch.arange(positions, dtype=torch.float32, device=device), base ** (-channel / head_dim))
    return angle.cos(), angle.sin()
