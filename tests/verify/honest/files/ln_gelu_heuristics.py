# task: layernorm_gelu
import torch
import torch.nn as nn
import triton
import triton.language as tl


def _warps(args):
    block = args["BLOCK"]
    return 4 if block <= 1024 else 8


@triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["N"]), "num_warps": _warps})
@triton.jit
def ln_gelu(X, W, B, Y, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    m = c < N
    x = tl.load(X + row * N + c, mask=m, other=0.0).to(tl.float32)
    mu = tl.sum(x, 0) / N
    d = tl.where(m, x - mu, 0.0)
    r = tl.math.rsqrt(tl.sum(d * d, 0) / N + eps)
    z = d * r * tl.load(W + c, mask=m, other=1.0).to(tl.float32) + tl.load(B + c, mask=m, other=0.0).to(tl.float32)
    z = 0.5 * z * (1.0 + tl.math.erf(z * 0.7071067811865475))
    tl.store(Y + row * N + c, z.to(Y.dtype.element_ty), mask=m)


class ModelNew(nn.Module):
    def __init__(self, cols, eps):
        super().__init__()
        self.norm_weight = nn.Parameter(torch.ones(cols))
        self.norm_bias = nn.Parameter(torch.zeros(cols))
        self.eps = eps

    def forward(self, x):
        y = torch.empty_like(x)
        N = x.size(-1)
        ln_gelu[(x.numel() // N,)](x, self.norm_weight, self.norm_bias, y, N, self.eps)
        return y
