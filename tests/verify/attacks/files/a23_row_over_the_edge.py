# attack: 23
# how: a block of columns wider than the row runs into the next row, and past the last
# task: max_last
# where: cpu
# naive: fooled
# reasons: out-of-bounds, crash
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def top_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols)
    x = tl.where(cols < n, x, -float("inf"))
    tl.store(out_ptr + row, tl.max(x, 0))


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
        top_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
