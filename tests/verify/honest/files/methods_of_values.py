# task: softmax_entropy
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def entropy_kernel(x_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=-float("inf")).to(tl.float32)
    x = x - x.max(axis=0)
    e = x.exp()
    s = e.sum(axis=0)
    dot = tl.where(mask, e * x, 0.0).sum(axis=0)
    tl.store(out_ptr + row, s.log2() * 0.6931471805599453 - dot * (s * s).rsqrt() + (s * 0.0).sqrt().abs().sin())


class ModelNew(nn.Module):
    def forward(self, x):
        out = x.new_empty(x.shape[0])
        entropy_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
