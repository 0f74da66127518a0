"""Loaded into the warm worker before any candidate: whatever PyTorch and Triton set up on first use is set up once.

Some of it reads /proc, which candidates' children do not have. Imports torch and triton, and computes on import, which is
its only purpose.
"""

from __future__ import annotations

import os
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch.utils._python_dispatch import TorchDispatchMode


@triton.jit
def _double(x, y, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton takes an annotation for a type of its own
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.sum(tl.load(x + at), axis=0) + tl.exp(tl.load(x + at)), mask=at < BLOCK)


class _Through(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def warm() -> None:
    """Run one small computation of each kind."""
    torch.set_num_threads(1)
    for dtype in (torch.float32, torch.float16, torch.float64):
        x = torch.ones(4, 4, dtype=dtype)
        F.linear(x, x).softmax(-1)
        F.layer_norm(x, (4,))
        F.conv2d(x.view(1, 1, 4, 4), x.view(1, 1, 4, 4), padding=1)
        F.gelu(x)
    x, y = torch.ones(16), torch.empty(16)
    with _Through():
        _double[(1,)](x, y, BLOCK=16)
        torch.empty_like(x).fill_(0)


warm()
