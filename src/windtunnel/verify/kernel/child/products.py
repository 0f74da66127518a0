"""What a reference's products come to, with factors cut to TF32, in float64, as Triton's and cuDNN's default does.

And how many of their multiplications are by zero, which nobody has to make. Runs in trusted children. Imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

KEPT_BITS = 10  # of the mantissa, after the leading one
# Bits of the mantissa, and the whole number of as many bits.
WIDE = {torch.float64: (52, torch.int64), torch.float32: (23, torch.int32)}
# The factors' positions among an operation's arguments; the other ones are added or say how.
FACTORS: dict[str, tuple[int, ...]] = {
    "mm": (0, 1),
    "bmm": (0, 1),
    "mv": (0, 1),
    "dot": (0, 1),
    "linear": (0, 1),
    "matmul": (0, 1),
    "addmm": (1, 2),
    "addbmm": (1, 2),
    "addmv": (1, 2),
    "baddbmm": (1, 2),
    "convolution": (0, 1),
    "_scaled_dot_product_flash_attention_for_cpu": (0, 1, 2),
    "_scaled_dot_product_efficient_attention": (0, 1, 2),
}
# Where the two factors stand, each a matrix or a batch of them.
MATRICES = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}


class CoarseProducts(TorchDispatchMode):
    """Inside, every product of float64 or float32 tensors takes its factors with 10 bits.

    Cut, not rounded, as tensor cores do: it is the larger error of the two, and candidates may do either.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        places = FACTORS.get(func.overloadpacket.__name__, ())
        return func(*(cut(value) if at in places else value for at, value in enumerate(args)), **(kwargs or {}))


def cut(value: Any) -> Any:
    """Round a float64 or float32 tensor towards zero to TF32's mantissa; returns anything else as it is."""
    if not isinstance(value, torch.Tensor) or value.dtype not in WIDE:
        return value
    bits, whole = WIDE[value.dtype]
    low = bits - KEPT_BITS
    return (value.contiguous().view(whole) >> low << low).view(value.dtype)


class ProductsByZero(TorchDispatchMode):
    """flops: of all products inside, those of which a factor is zero, as where a matrix is diagonal or triangular."""

    supports_higher_order_operators = True  # torch.cond and the like

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        place = MATRICES.get(getattr(getattr(func, "overloadpacket", None), "__name__", ""))
        if place is not None:
            factors = args[place], args[place + 1]
            if all(factor.layout is torch.strided for factor in factors):
                self.flops += _by_zero(*factors)
        return func(*args, **(kwargs or {}))


def _by_zero(left: torch.Tensor, right: torch.Tensor) -> int:
    """Count the multiplications by zero of left [..., m, k] times right [..., k, n].

    Of each k: how many elements of its column meet how many of its row.
    """
    columns, rows = (left != 0).sum(-2).double(), (right != 0).sum(-1).double()
    return 2 * (left.numel() * right.shape[-1] - int((columns * rows).sum()))
