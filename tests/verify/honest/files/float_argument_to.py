# task: layernorm
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def ln(x_ptr, w_ptr, b_ptr, y_ptr, n_cols, eps, inv_n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    eps = eps.to(tl.float32)
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) * inv_n.to(tl.float32)
    d = tl.where(mask, x - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(d * d, axis=0) * inv_n + eps)
    w = tl.load(w_ptr + cols, mask=mask, other=0.0)
    b = tl.load(b_ptr + cols, mask=mask, other=0.0)
    tl.store(y_ptr + row * n_cols + cols, (d * rstd * w + b).to(y_ptr.dtype.element_ty), mask=mask)


class ModelNew(nn.Module):
    def __init__(self, cols, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))
        self.bias = nn.Parameter(torch.zeros(cols))
        self.eps = eps

    def forward(self, x):
        y = torch.empty_like(x)
        n = x.shape[-1]
        ln[(x.shape[0],)](x, self.weight, self.bias, y, n, self.eps, 1.0 / n, BLOCK=triton.next_power_of_2(n))
        return y
