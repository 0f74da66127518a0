"""The reference with the factors of its products cut to TF32, in float64: what Triton's and cuDNN's default does to it.

Runs in trusted children. Imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

KEPT_BITS = 10  # of the mantissa, after the leading one
MANTISSA_BITS = 52  # of float64
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


class CoarseProducts(TorchDispatchMode):
    """Inside, every product of float64 tensors takes its factors with 10 bits. Cut, not rounded, as tensor cores do: it is the
    larger error of the two, and candidates may do either."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        places = FACTORS.get(func.overloadpacket.__name__, ())
        return func(*(cut(value) if at in places else value for at, value in enumerate(args)), **(kwargs or {}))


def cut(value: Any) -> Any:
    """A float64 tensor towards zero to TF32's mantissa; anything else as it is."""
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float64:
        return value
    low = MANTISSA_BITS - KEPT_BITS
    return (value.contiguous().view(torch.int64) >> low << low).view(torch.float64)
