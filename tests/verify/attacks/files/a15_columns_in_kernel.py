# attack: 15
# how: 64 columns are written into the kernel
# task: softmax
# where: cpu
# naive: fooled
# reasons: wrong-values, out-of-bounds, non-finite, crash, race
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, out_ptr):
    at = tl.program_id(0) * 64 + tl.arange(0, 64)
    x = tl.load(x_ptr + at).to(tl.float32)
    e = tl.exp(x - tl.max(x, 0))
    tl.store(out_ptr + at, (e / tl.sum(e, 0)).to(out_ptr.dtype.element_ty))


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        softmax_kernel[(8,)](x, out)
        return out
