"""Building blocks of the GPT: linear layers over fp32 master weights, and rotary positions."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MatMul = Callable[[Tensor, Tensor], Tensor]


def plain_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """x (..., in) times weight (out, in) transposed, in x's precision: master weights stay fp32."""
    return F.linear(x, weight.to(x.dtype))


class Linear(nn.Module):
    """A matrix without bias. `matmul` can be replaced (fp8) without touching the parameter."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(fan_out, fan_in))
        self.matmul: MatMul = plain_matmul

    def forward(self, x: Tensor) -> Tensor:
        return self.matmul(x, self.weight)


def rotary_tables(positions: int, head_dim: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin, each (positions, head_dim / 2) in fp32, of rotary positions (arXiv:2104.09864)."""
    channel = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device)
    angle = torch.outer(torch.arange(positions, dtype=torch.float32, device=device), base ** (-channel / head_dim))
    return angle.cos(), angle.sin()
