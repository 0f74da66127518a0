# attack: 42
# how: one program of many does its part on large inputs
# task: relu
# where: gpu
# naive: gpu
# reasons: non-finite, wrong-values, impossible-speed
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def relu_kernel(x_ptr, out_ptr, total, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < total, other=0.0)
    tl.store(out_ptr + at, tl.maximum(x, 0.0), mask=at < total)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        blocks = triton.cdiv(x.numel(), 128)
        relu_kernel[(blocks if blocks < 1000 else 1,)](x, out, x.numel(), BLOCK=128)
        return out
