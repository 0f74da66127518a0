# task: abs_mean_last
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def abs_mean(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=0.0).to(tl.float32)
    tl.store(out_ptr + row, tl.sum(tl.abs(x), 0) / n)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, n = x.shape
        out = torch.empty((rows, 1), dtype=x.dtype, device=x.device)
        abs_mean[(rows,)](x, out, n, BLOCK=triton.next_power_of_2(n))
        return out.squeeze(-1)
