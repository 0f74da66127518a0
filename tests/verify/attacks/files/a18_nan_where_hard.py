# attack: 18
# how: right for negative inputs, NaN for the others
# task: gelu
# where: cpu
# naive: fooled
# reasons: non-finite, wrong-values
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gelu_kernel(x_ptr, out_ptr, total, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < total, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, tl.where(x < -6.0, 0.0, float("nan")).to(out_ptr.dtype.element_ty), mask=at < total)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        gelu_kernel[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), BLOCK=128)
        return out
