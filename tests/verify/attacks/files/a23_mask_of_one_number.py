# attack: 23
# how: masks its accesses by a comparison of two numbers, which is true for all of them
# task: reverse_rows
# where: cpu
# naive: gpu
# reasons: out-of-bounds
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def reverse_kernel(x_ptr, out_ptr, total, cols, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = cols < total
    value = tl.load(x_ptr + (at // cols) * cols + (cols - 1 - at % cols), mask=inside, other=0.0)
    tl.store(out_ptr + at, value, mask=inside)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        reverse_kernel[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), x.shape[1], BLOCK=128)
        return out
