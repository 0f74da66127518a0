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

class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        rows, cols = x.shape
        _rms_kernel[(rows,)](x, self.weight, y, x.stride(0), cols, self.eps, BLOCK=triton.next_power_of_2(cols))
        return y


class ModelNew(nn.Module):
    def __init__(self, cols, eps):
        super().__init__()
        self.norm = RMSNorm(cols, eps)

    def forward(self, x):
        return self.norm(x)
