# task: l2_norm_last
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sum_squares(x):
    return tl.sum(x * x, axis=1)


@triton.jit
def norm_kernel(x_ptr, o_ptr, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    acc = tl.zeros([ROWS], tl.float32)
    for c0 in range(0, cols, COLS):
        c = c0 + tl.arange(0, COLS)
        m = (r[:, None] < rows) & (c[None, :] < cols)
        acc += sum_squares(tl.load(x_ptr + r[:, None] * cols + c[None, :], m, 0.0).to(tl.float32))
    tl.store(o_ptr + r, tl.sqrt(acc), r < rows)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape[0], x.shape[1]
        o = x.new_empty(rows)
        norm_kernel[triton.cdiv(rows, 2),](x, o, rows, cols, 2, 32)
        return o
