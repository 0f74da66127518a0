# task: rmsnorm
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.heuristics(
    values={
        "BLOCK": lambda args: triton.next_power_of_2(args["N"]),
        "num_warps": lambda args: 8 if args["N"] > 4096 else 4,
    }
)
@triton.jit
def rms(X, W, Y, stride, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    x = tl.load(X + row * stride + cols, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(W + cols, mask=mask, other=0.0)
    tl.store(Y + row * stride + cols, (x * tl.rsqrt(tl.sum(x * x) / N + eps)) * w, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, hidden, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(hidden)), eps

    def forward(self, x):
        y = torch.empty_like(x)
        rms[(x.size(0),)](x, self.weight, y, x.stride(0), x.size(1), self.eps)
        return y
