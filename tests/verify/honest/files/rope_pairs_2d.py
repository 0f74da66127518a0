# task: rope_halves
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rope(x_ptr, angle_ptr, out_ptr, LENGTH, HALF, BLOCK: tl.constexpr):
    where = tl.program_id(0)
    place = where % LENGTH
    i = tl.arange(0, BLOCK)
    mask = i < HALF
    angle = tl.load(angle_ptr + place * HALF + i, mask=mask, other=0.0).to(tl.float32)
    base = where * 2 * HALF
    a = tl.load(x_ptr + base + i, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(x_ptr + base + HALF + i, mask=mask, other=0.0).to(tl.float32)
    cos, sin = tl.cos(angle), tl.sin(angle)
    tl.store(out_ptr + base + i, a * cos - b * sin, mask=mask)
    tl.store(out_ptr + base + HALF + i, b * cos + a * sin, mask=mask)


class ModelNew(nn.Module):
    def forward(self, x, angle):
        *lead, length, head = x.shape
        out = torch.empty_like(x)
        rope[(x.numel() // head,)](x, angle, out, length, head // 2, BLOCK=triton.next_power_of_2(head // 2))
        return out
