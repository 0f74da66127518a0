# task: hardswish
import math

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    blocks = tl.num_programs(0)
    for start in range(pid * BLOCK, n, blocks * BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.float32)
        y = x * tl.clamp(x + 3.0, 0.0, 6.0) / 6.0
        tl.store(y_ptr + at, y, mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        n = math.prod(x.shape)
        y = torch.empty_like(x)
        kernel[(min(4, math.ceil(n / 64)),)](x, y, n, BLOCK=64)
        return y
