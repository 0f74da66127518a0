"""Multiplications by zero in a reference's products: nobody has to make them. Runs in trusted children. Imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Where the two factors stand, each a matrix or a batch of them.
FACTORS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}


class ProductsByZero(TorchDispatchMode):
    """flops: of all products inside, those of which a factor is zero, as where a matrix is diagonal or triangular."""

    supports_higher_order_operators = True  # torch.cond and the like

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        place = FACTORS.get(getattr(getattr(func, "overloadpacket", None), "__name__", ""))
        if place is not None:
            factors = args[place], args[place + 1]
            if all(factor.layout is torch.strided for factor in factors):
                self.flops += _by_zero(*factors)
        return func(*args, **(kwargs or {}))


def _by_zero(left: torch.Tensor, right: torch.Tensor) -> int:
    """left [..., m, k] times right [..., k, n]: of each k, how many elements of its column meet how many of its row."""
    columns, rows = (left != 0).sum(-2).double(), (right != 0).sum(-1).double()
    return 2 * (left.numel() * right.shape[-1] - int((columns * rows).sum()))
