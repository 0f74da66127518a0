# task: relu
import torch
import torch.nn as nn
import triton
import triton.language as tl
DEFAULTS = dict(BLOCK_SIZE=256, num_warps=4)


@triton.jit
def relu_kernel(x_ptr, y_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    pid = tl.program_id(axis=0)
    offsets = pid * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(y_ptr + offsets, tl.where(x > 0, x, 0.0), mask=mask)

def launch_options(n):
    options = dict(DEFAULTS)
    if n <= 4096:
        options.update(BLOCK_SIZE=128, num_warps=2)
    return options


class ModelNew(nn.Module):
    def forward(self, x):
        n = x.numel()
        options = launch_options(n)
        block = options.pop("BLOCK_SIZE")
        y = torch.empty_like(x)
        relu_kernel[(triton.cdiv(n, block),)](x, y, n, BLOCK_SIZE=block, **options)
        return y
