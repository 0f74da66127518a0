# attack: 16
# how: log of the plain sum of exponentials
# task: logsumexp_last
# where: cpu
# naive: fooled
# reasons: wrong-values, non-finite
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def lse_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    e = tl.exp(tl.load(x_ptr + row * n + cols, mask=cols < n, other=-float("inf")).to(tl.float32))
    tl.store(out_ptr + row, tl.log(tl.sum(e, 0)).to(out_ptr.dtype.element_ty))


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
        lse_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
