# attack: 22
# how: a running sum that reads what the program before has written
# task: cumsum_last
# where: cpu
# naive: fooled
# reasons: race, wrong-values, non-finite
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def scan_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    start = tl.program_id(1) * BLOCK
    cols = start + tl.arange(0, BLOCK)
    carry = tl.load(out_ptr + row * n + start - 1, mask=start > 0, other=0.0).to(tl.float32)
    y = carry + tl.cumsum(tl.load(x_ptr + row * n + cols, mask=cols < n, other=0.0).to(tl.float32), 0)
    tl.store(out_ptr + row * n + cols, y.to(out_ptr.dtype.element_ty), mask=cols < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        scan_kernel[(x.shape[0], triton.cdiv(x.shape[1], 16))](x, out, x.shape[1], BLOCK=16)
        return out
