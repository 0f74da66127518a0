# attack: 16
# how: a block's padding counts as zeros, among which the largest of a row without positive numbers is not
# task: max_last
# where: cpu
# naive: fooled
# reasons: wrong-values
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def row_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + row * n + cols, mask=mask, other=0.0).to(tl.float32)
    value = tl.max(x, 0)
    tl.store(out_ptr + row, value.to(out_ptr.dtype.element_ty))


class ModelNew(nn.Module):
    def forward(self, x):
        rows, n = x.shape
        out = torch.empty(rows, dtype=x.dtype, device=x.device)
        row_kernel[(rows,)](x, out, n, BLOCK=triton.next_power_of_2(n))
        return out
