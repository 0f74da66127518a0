# task: relu
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def relu_kernel(x_ptr, y_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    pid = tl.program_id(axis=0)
    offsets = pid * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(y_ptr + offsets, tl.where(x > 0, x, 0.0), mask=mask)

BASE_BLOCKS = [64, 128]


def candidates(n):
    blocks = BASE_BLOCKS.copy()
    if n > 1 << 20:
        blocks += [512, 1024]
    return blocks


class ModelNew(nn.Module):
    def forward(self, x):
        n = x.numel()
        block = max(b for b in candidates(n) if b <= max(64, n))
        y = torch.empty_like(x)
        relu_kernel[(triton.cdiv(n, block),)](x, y, n, BLOCK_SIZE=block)
        return y
