# task: relu
from typing import Optional

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def relu_kernel(x_ptr, out_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    pid = tl.program_id(axis=0)
    offsets = pid * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, tl.where(x > 0, x, 0.0), mask=mask)


def relu(x: torch.Tensor, out: Optional[torch.Tensor] = None) -> torch.Tensor:
    if out is None:
        out = torch.empty_like(x)
    flat, flat_out = x.reshape(-1), out.view(-1)
    relu_kernel[(triton.cdiv(flat.shape[0], 128),)](flat, flat_out, int(flat.shape[0]), BLOCK_SIZE=128)
    return out


class ModelNew(nn.Module):
    def forward(self, x):
        return relu(x)
