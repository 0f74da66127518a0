# task: bias_gelu
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add_bias(x_ptr, bias_ptr, out_ptr, total, cols, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < total, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + at % cols, mask=at < total, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, x + bias, mask=at < total)


@triton.jit
def gelu_in_place(h_ptr, total, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    h = tl.load(h_ptr + at, mask=at < total, other=0.0).to(tl.float32)
    tl.store(h_ptr + at, 0.5 * h * (1.0 + tl.erf(h / 1.4142135623730951)), mask=at < total)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))

    def forward(self, x):
        total, cols = x.numel(), x.size(-1)
        h = torch.empty_like(x)
        grid = (triton.cdiv(total, 128),)
        add_bias[grid](x, self.bias, h, total, cols, BLOCK=128)
        gelu_in_place[grid](h, total, BLOCK=128)
        return h
