# task: softmax
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def kernel(X, Y, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(X + row * n_cols + cols, mask=mask, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    total = tl.sum(e, axis=0)
    keep = (total > 0.0) & mask
    y = tl.where(keep, e / total, 0.0)
    tl.store(Y + row * n_cols + cols, y, mask=keep | mask)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        n_rows, n_cols = x.shape
        BLOCK = triton.next_power_of_2(n_cols)
        kernel[(n_rows,)](x, out, n_cols, BLOCK=BLOCK)
        return out
