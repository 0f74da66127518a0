# attack: 23
# how: masks a row's load by the row's number alone and chooses among what lies behind the row afterwards
# task: sum_last
# where: cpu
# naive: gpu
# reasons: out-of-bounds
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, out_ptr, rows, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    exists = rows > cols - cols
    x = tl.load(x_ptr + row * cols + at, mask=exists, other=0.0)
    tl.store(out_ptr + row, tl.sum(tl.where(at < cols, x, 0.0), 0))


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        out = torch.empty((rows,), dtype=x.dtype, device=x.device)
        sum_kernel[(rows,)](x, out, rows, cols, BLOCK=triton.next_power_of_2(cols))
        return out
