# task: depthwise_conv1d
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def pad(x_ptr, padded_ptr, LENGTH, WIDTH, BLOCK: tl.constexpr):
    line = tl.program_id(0)
    t = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + line * LENGTH + t, mask=t < LENGTH, other=0.0)
    tl.store(padded_ptr + line * WIDTH + 3 + t, x, mask=t < LENGTH)


@triton.jit
def conv(padded_ptr, w_ptr, b_ptr, out_ptr, CHANNELS, LENGTH, WIDTH, BLOCK: tl.constexpr):
    line = tl.program_id(0)
    channel = line % CHANNELS
    t = tl.arange(0, BLOCK)
    y = tl.zeros((BLOCK,), dtype=tl.float32) + tl.load(b_ptr + channel).to(tl.float32)
    for tap in tl.static_range(4):
        w = tl.load(w_ptr + channel * 4 + tap).to(tl.float32)
        y += w * tl.load(padded_ptr + line * WIDTH + t + tap, mask=t < LENGTH, other=0.0).to(tl.float32)
    tl.store(out_ptr + line * LENGTH + t, y * tl.sigmoid(y), mask=t < LENGTH)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 4, groups=channels)

    def forward(self, x):
        batch, channels, length = x.shape
        padded = torch.zeros((batch, channels, length + 3), dtype=x.dtype, device=x.device)
        out = torch.empty_like(x)
        block = triton.next_power_of_2(length)
        pad[(batch * channels,)](x, padded, length, length + 3, BLOCK=block)
        conv[(batch * channels,)](padded, self.conv.weight, self.conv.bias, out, channels, length, length + 3, BLOCK=block)
        return out
