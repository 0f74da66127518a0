# task: accumulate_into
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add_into(x_ptr, y_ptr, total, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < total, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + at, mask=at < total, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, y + x * tl.sigmoid(x), mask=at < total)


class ModelNew(nn.Module):
    def forward(self, x, y):
        add_into[(triton.cdiv(y.numel(), 128),)](x, y, y.numel(), BLOCK=128)
        return y
