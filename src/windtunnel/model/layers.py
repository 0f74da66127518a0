"""Building blocks of the GPT: linear layers over fp32 master weights, embeddings, rotary positions, norm."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .kernels import embedding_lookup

MatMul = Callable[[Tensor, Tensor], Tensor]


def norm(x: Tensor) -> Tensor:
    """RMS norm over the last axis, without parameters (a gain would be absorbed by the next matrix)."""
    return F.rms_norm(x, (x.size(-1),))


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


class Table(nn.Module):
    """Vectors looked up by token. The gradient is a deterministic sorted sum, not atomic additions."""

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, dim))

    def forward(self, idx_BT: Tensor, dtype: torch.dtype) -> Tensor:
        return embedding_lookup(self.weight, idx_BT, dtype)


def rotary_tables(positions: int, head_dim: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin, each (positions, head_dim / 2) in fp32, of rotary positions (arXiv:2104.09864)."""
    channel = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device)
    angle = torch.outer(torch.arange(positions, dtype=torch.float32, device=device), base ** (-channel / head_dim))
    return angle.cos(), angle.sin()


def rotate(x_BTHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate channel pairs (i, i + D/2) by their position's angle. cos, sin broadcast to (B, T, 1, D/2)."""
    a, b = x_BTHD.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
