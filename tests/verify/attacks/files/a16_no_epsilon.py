# attack: 16
# how: leaves out an epsilon that numbers of ordinary size do not show
# task: cosine_rows
# where: cpu
# naive: fooled
# reasons: wrong-values
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def row_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + row * n + cols, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + row * n + cols, mask=mask, other=0.0).to(tl.float32)
    value = tl.sum(x * y, 0) * tl.rsqrt(tl.sum(x * x, 0) * tl.sum(y * y, 0))
    tl.store(out_ptr + row, value.to(out_ptr.dtype.element_ty))


class ModelNew(nn.Module):
    def forward(self, x, y):
        rows, n = x.shape
        out = torch.empty(rows, dtype=x.dtype, device=x.device)
        row_kernel[(rows,)](x, y, out, n, BLOCK=triton.next_power_of_2(n))
        return out
