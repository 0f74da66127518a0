# task: logsumexp_last
from __future__ import annotations

import torch
import torch.nn as nn
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def lse(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=float("-inf")).to(tl.float32)
    top = tl.max(x, axis=0)
    tl.store(out_ptr + row, top + tl.log(tl.sum(tl.exp(x - top), axis=0)))


def _logsumexp(x: Tensor) -> Tensor:
    rows, n = x.shape
    out = torch.empty(rows, dtype=x.dtype, device=x.device)
    lse[(rows,)](x, out, n, BLOCK=triton.next_power_of_2(n), num_warps=1 if n < 512 else 4)
    return out


class ModelNew(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return _logsumexp(x)
