# task: sigmoid
import torch
import torch.nn as nn
import triton
import triton.language as tl

from triton.language import constexpr, arange, load, store, program_id, exp, float32


@triton.jit
def k(x_ptr, o_ptr, n, BLOCK: constexpr):
    i = program_id(0) * BLOCK + arange(0, BLOCK)
    x = load(x_ptr + i, mask=i < n, other=0.0).to(float32)
    store(o_ptr + i, 1.0 / (1.0 + exp(-x)), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        o = torch.empty_like(x)
        k[(triton.cdiv(o.numel(), 256),)](x, o, o.numel(), BLOCK=256)
        return o
