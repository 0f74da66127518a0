# attack: 22
# how: loads without atomics what other programs add to by them, and adds what was missing then
# task: sum_last
# where: cpu
# naive: gpu
# reasons: race
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, s_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    part = tl.program_id(1)
    at = part * BLOCK + tl.arange(0, BLOCK)
    v = tl.sum(tl.load(x_ptr + row * cols + at, mask=at < cols, other=0.0), 0)
    old = tl.load(s_ptr + row)
    new = old + v
    tl.atomic_add(s_ptr + row, new - old)


class ModelNew(nn.Module):
    def forward(self, x):
        cols = x.shape[-1]
        rows = x.numel() // cols
        out = torch.zeros(x.shape[:-1], dtype=x.dtype, device=x.device)
        sum_kernel[(rows, triton.cdiv(cols, 16))](x, out, cols, BLOCK=16)
        return out
