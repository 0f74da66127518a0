# task: scale_shift_silu
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def affine_silu(x_ptr, scale_ptr, shift_ptr, y_ptr, rows, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    mask = (c < cols) & (row < rows)
    x = tl.load(x_ptr + row * cols + c, mask=mask, other=0.0).to(tl.float32)
    h = tl.fma(x, tl.load(scale_ptr + c, mask=mask, other=0.0).to(tl.float32), tl.load(shift_ptr + c, mask=mask, other=0.0).to(tl.float32))
    tl.store(y_ptr + row * cols + c, h * tl.sigmoid(h), mask=mask)


class Affine(nn.Module):
    """Holds the two vectors."""

    def __init__(self, cols):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(cols))
        self.shift = nn.Parameter(torch.zeros(cols))


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.affine = Affine(cols)

    def forward(self, x):
        rows, cols = x.shape
        y = torch.empty_like(x)
        affine_silu[(rows,)](x, self.affine.scale, self.affine.shift, y, rows, cols, BLOCK=triton.next_power_of_2(cols))
        return y
