# attack: 16
# how: softmax without subtracting the maximum: infinite for large inputs
# task: softmax
# where: cpu
# naive: fooled
# reasons: wrong-values, non-finite
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    e = tl.exp(tl.load(x_ptr + row * n + cols, mask=cols < n, other=-float("inf")).to(tl.float32))
    tl.store(out_ptr + row * n + cols, (e / tl.sum(e, 0)).to(out_ptr.dtype.element_ty), mask=cols < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
