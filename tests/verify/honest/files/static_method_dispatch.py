# task: layernorm_gelu
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def _ln_kernel(X, W, B, Y, stride, N, eps, BLOCK: tl.constexpr, GELU: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    x = tl.load(X + row * stride + cols, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / N
    xc = tl.where(mask, x - mean, 0.0)
    var = tl.sum(xc * xc, axis=0) / N
    w = tl.load(W + cols, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(B + cols, mask=mask, other=0.0).to(tl.float32)
    y = xc * tl.rsqrt(var + eps) * w + b
    if GELU:
        y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
    tl.store(Y + row * stride + cols, y, mask=mask)

class LayerNormGELU:
    @staticmethod
    def block(n: int) -> int:
        return max(16, triton.next_power_of_2(n))

    @staticmethod
    def apply(x, weight, bias, eps):
        x2 = x.reshape(-1, x.size(-1))
        y = torch.empty_like(x2)
        BLOCK = LayerNormGELU.block(x2.size(1))
        _ln_kernel[(x2.size(0),)](x2, weight, bias, y, x2.stride(0), x2.size(1), eps, BLOCK=BLOCK, GELU=True)
        return y.reshape_as(x)


class ModelNew(nn.Module):
    def __init__(self, cols, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))
        self.bias = nn.Parameter(torch.zeros(cols))
        self.eps = eps

    def forward(self, x):
        return LayerNormGELU.apply(x, self.weight, self.bias, self.eps)
