# task: rope_halves
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def rope(x_ptr, a_ptr, y_ptr, L, HALF, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    pos = pid % L
    at = tl.arange(0, BLOCK)
    mask = at < HALF
    angle = tl.load(a_ptr + pos * HALF + at, mask=mask, other=0.0).to(tl.float32)
    c, s = tl.cos(angle), tl.sin(angle)
    a = tl.load(x_ptr + pid * 2 * HALF + at, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(x_ptr + pid * 2 * HALF + HALF + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + pid * 2 * HALF + at, a * c - b * s, mask=mask)
    tl.store(y_ptr + pid * 2 * HALF + HALF + at, b * c + a * s, mask=mask)


class ModelNew(nn.Module):
    def forward(self, x, angle):
        if not (x.is_contiguous() and angle.is_contiguous()):
            x, angle = x.contiguous(), angle.contiguous()
        *batch_dims, length, head = x.shape
        half = head // 2
        out = torch.empty_like(x)
        programs = length
        for size in batch_dims:
            programs *= size
        rope[(programs,)](x, angle, out, length, half, BLOCK=triton.next_power_of_2(half))
        return out
