# task: pointwise_conv_bn_silu
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def pw(x, w, g, s, mu, var, y, C, CO, HW, EPS: tl.constexpr, BN: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr):
    b = tl.program_id(2)
    rn = tl.program_id(0) * BN + tl.arange(0, BN)
    rp = tl.program_id(1) * BP + tl.arange(0, BP)
    acc = tl.zeros((BN, BP), dtype=tl.float32)
    for k in range(0, C, BK):
        rk = k + tl.arange(0, BK)
        wv = tl.load(w + rn[:, None] * C + rk[None, :], mask=(rn[:, None] < CO) & (rk[None, :] < C), other=0.)
        xv = tl.load(x + (b * C + rk[:, None]) * HW + rp[None, :], mask=(rk[:, None] < C) & (rp[None, :] < HW), other=0.)
        acc += tl.dot(wv, xv)
    m = rn < CO
    inv = tl.rsqrt(tl.load(var + rn, mask=m, other=1.).to(tl.float32) + EPS) * tl.load(g + rn, mask=m, other=0.).to(tl.float32)
    h = (acc - tl.load(mu + rn, mask=m, other=0.).to(tl.float32)[:, None]) * inv[:, None] + tl.load(s + rn, mask=m, other=0.).to(tl.float32)[:, None]
    tl.store(y + (b * CO + rn[:, None]) * HW + rp[None, :], h * tl.sigmoid(h), mask=m[:, None] & (rp[None, :] < HW))


class ModelNew(nn.Module):
    def __init__(self, channels, out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out, channels, 1, 1) * (2.0 / channels) ** 0.5)
        self.gain = nn.Parameter(torch.ones(out))
        self.shift = nn.Parameter(torch.zeros(out))
        self.register_buffer("running_mean", torch.zeros(out))
        self.register_buffer("running_var", torch.ones(out))

    def forward(self, x):
        N, C, H, W = x.shape
        w = self.weight.squeeze(-1).squeeze(-1)
        CO = w.shape[0]
        y = torch.empty(N, CO, H, W, dtype=x.dtype, device=x.device)
        pw[(triton.cdiv(CO, 16), triton.cdiv(H * W, 64), N)](x.flatten(2), w, self.gain, self.shift, self.running_mean, self.running_var,
            y.flatten(2), C, CO, H * W, EPS=1e-5, BN=16, BP=64, BK=16)
        return y
