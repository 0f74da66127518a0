# task: rmsnorm
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def _rms_kernel(X, W, Y, stride, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    x = tl.load(X + row * stride + cols, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(W + cols, mask=mask, other=0.0).to(tl.float32)
    rstd = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / N + eps)
    tl.store(Y + row * stride + cols, x * rstd * w, mask=mask)

class Options:
    """Launch options."""

    WARPS = {256: 2, 1024: 4}

    def __init__(self, cols):
        self.block = triton.next_power_of_2(cols)
        self.warps = min([w for size, w in self.WARPS.items() if self.block <= size], default=8)

    def as_kwargs(self):
        return {"BLOCK": self.block, "num_warps": self.warps}


class ModelNew(nn.Module):
    def __init__(self, cols, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))
        self.eps = eps
        self.options = Options(cols)

    def forward(self, x):
        y = torch.empty_like(x)
        _rms_kernel[(x.shape[0],)](x, self.weight, y, x.stride(0), x.shape[1], self.eps, **self.options.as_kwargs())
        return y
