# task: variance_last
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def combine(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    n = n_a + n_b
    delta = mean_b - mean_a
    share = tl.where(n == 0.0, 0.0, n_b / n)
    return mean_a + delta * share, m2_a + m2_b + delta * delta * n_a * share, n


@triton.jit
def variance_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    mean = 0.0
    m2 = 0.0
    count = 0.0
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n
        x = tl.load(x_ptr + row * n + cols, mask=mask, other=0.0).to(tl.float32)
        many = tl.sum(mask.to(tl.float32), 0)
        block_mean = tl.sum(x, 0) / many
        d = tl.where(mask, x - block_mean, 0.0)
        mean, m2, count = combine(mean, m2, count, block_mean, tl.sum(d * d, 0), many)
    tl.store(out_ptr + row, m2 / count)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, n = x.shape
        out = torch.empty(rows, device=x.device, dtype=x.dtype)
        variance_kernel[(rows,)](x, out, n, BLOCK=16)
        return out
