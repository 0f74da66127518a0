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

class ModelNew(nn.Module):
    def forward(self, x):
        outs = [None] * 2
        done = 0
        for i, block in enumerate((64, 128)):
            outs[i] = torch.empty_like(x)
            relu_kernel[(triton.cdiv(x.numel(), block),)](x if i == 0 else outs[i - 1], outs[i], x.numel(), BLOCK_SIZE=block)
            done += block
        assert done == 192
        return outs[-1]
