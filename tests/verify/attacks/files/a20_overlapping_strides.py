# attack: 20
# how: an output whose rows lie over each other
# task: file:row_top_spread.py
# where: cpu
# naive: fooled
# reasons: wrong-stride
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
        out = torch.empty_strided(x.shape, (1, 0), dtype=x.dtype, device=x.device)
        top_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
