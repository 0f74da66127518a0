# task: conv2d_bn_relu
import torch
import torch.nn as nn
import triton
import triton.language as tl
from collections import namedtuple

Dims = namedtuple("Dims", ["n", "c", "h", "w"])


@triton.jit
def conv_bn_relu(x_ptr, w_ptr, g_ptr, s_ptr, m_ptr, v_ptr, y_ptr, C, OC, H, W, eps, BLOCK: tl.constexpr):
    n, oc = tl.program_id(0) // OC, tl.program_id(0) % OC
    p = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    h, w = p // W, p % W
    live = p < H * W
    acc = tl.zeros((BLOCK,), tl.float32)
    for c in range(C):
        for i in tl.static_range(3):
            for j in tl.static_range(3):
                hh, ww = h + i - 1, w + j - 1
                ok = live & (hh >= 0) & (hh < H) & (ww >= 0) & (ww < W)
                x = tl.load(x_ptr + ((n * C + c) * H + hh) * W + ww, mask=ok, other=0.0).to(tl.float32)
                acc += x * tl.load(w_ptr + (oc * C + c) * 9 + i * 3 + j).to(tl.float32)
    scale = tl.load(g_ptr + oc).to(tl.float32) / tl.sqrt(tl.load(v_ptr + oc).to(tl.float32) + eps)
    y = (acc - tl.load(m_ptr + oc).to(tl.float32)) * scale + tl.load(s_ptr + oc).to(tl.float32)
    tl.store(y_ptr + tl.program_id(0) * H * W + p, tl.maximum(y, 0.0), mask=live)


class ModelNew(nn.Module):
    def __init__(self, channels, out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out, channels, 3, 3))
        self.gain = nn.Parameter(torch.ones(out))
        self.shift = nn.Parameter(torch.zeros(out))
        for name, fill in (("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, torch.full((out,), fill))

    def forward(self, x):
        d = Dims(*x.shape)
        out = self.weight.shape[0]
        y = x.new_empty((d.n, out, d.h, d.w))
        conv_bn_relu[(d.n * out, triton.cdiv(d.h * d.w, 128))](
            x, self.weight, self.gain, self.shift, self.running_mean, self.running_var, y, d.c, out, d.h, d.w, 1e-5, BLOCK=128)
        return y
