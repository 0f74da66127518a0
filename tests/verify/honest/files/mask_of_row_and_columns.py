# task: depthwise_conv2d
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def dwconv(x_ptr, w_ptr, b_ptr, y_ptr, C, H, W, BW: tl.constexpr):
    row = tl.program_id(0)
    h = row % H
    plane = row // H
    c = plane % C
    w = tl.program_id(1) * BW + tl.arange(0, BW)
    acc = tl.full((BW,), 0.0, tl.float32) + tl.load(b_ptr + c)
    for i in tl.static_range(3):
        hh = h + i - 1
        for j in tl.static_range(3):
            ww = w + j - 1
            m = (hh >= 0) & (hh < H) & (ww >= 0) & (ww < W)
            acc += tl.load(x_ptr + (plane * H + hh) * W + ww, mask=m, other=0.0) * tl.load(w_ptr + c * 9 + i * 3 + j)
    tl.store(y_ptr + (plane * H + h) * W + w, acc, mask=w < W)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.dw = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)

    def forward(self, x):
        N, C, H, W = x.shape
        y = torch.empty_like(x)
        dwconv[(N * C * H, triton.cdiv(W, 64))](x, self.dw.weight, self.dw.bias, y, C, H, W, BW=64)
        return y
