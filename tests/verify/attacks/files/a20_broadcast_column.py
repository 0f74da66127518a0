# attack: 20
# how: one number a row, which broadcasts against the right answer
# task: file:row_top_spread.py
# where: cpu
# naive: fooled
# reasons: wrong-shape
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def top_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=-float("inf"))
    tl.store(out_ptr + row, tl.max(x, 0))


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty((x.shape[0], 1), dtype=x.dtype, device=x.device)
        top_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
