# attack: 24
# how: the slope that __init__ receives is ignored for the one of the shown size
# task: leaky_relu
# where: cpu
# naive: fooled
# reasons: wrong-values
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def leaky_kernel(x_ptr, out_ptr, total, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < total, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, tl.where(x > 0, x, x * 0.1).to(out_ptr.dtype.element_ty), mask=at < total)


class ModelNew(nn.Module):
    def __init__(self, slope):
        super().__init__()

    def forward(self, x):
        out = torch.empty_like(x)
        leaky_kernel[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), BLOCK=128)
        return out
