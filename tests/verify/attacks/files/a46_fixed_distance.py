# attack: 46
# how: reads the answer at a fixed distance from the input
# task: softmax
# where: cpu
# naive: gpu
# reasons: out-of-bounds, non-finite, wrong-values, crash
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def peek_kernel(x_ptr, out_ptr, total, away, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + away + at, mask=at < total, other=0.0), mask=at < total)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        peek_kernel[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), x.numel() + 128, BLOCK=128)
        return out
