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

def blocks_for(n: int, block: int = 128, limit: int = 4) -> int:
    while n // block > 65535:
        block *= 2
        limit -= 1
        assert limit > 0
    return block


class ModelNew(nn.Module):
    def forward(self, x):
        n = x.numel()
        block = blocks_for(n)
        y = torch.empty_like(x)
        relu_kernel[(triton.cdiv(n, block),)](x, y, n, block)
        return y
