# task: sum_middle
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add_up(x, acc, R, C, BR: tl.constexpr, BC: tl.constexpr):
    b = tl.program_id(0)
    r = tl.program_id(1) * BR + tl.arange(0, BR)
    for c0 in range(0, C, BC):
        c = c0 + tl.arange(0, BC)
        inside = (r[:, None] < R) & (c[None, :] < C)
        v = tl.load(x + (b * R + r[:, None]) * C + c[None, :], mask=inside, other=0.0).to(tl.float32)
        tl.atomic_add(acc + b * C + c, tl.sum(v, 0), mask=c < C)


@triton.jit
def narrow(acc, out, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + o, tl.load(acc + o, mask=o < n, other=0.0), mask=o < n)


class ModelNew(nn.Module):
    def forward(self, x):
        B, R, C = x.shape
        acc = torch.empty((B, C), device=x.device, dtype=torch.float32)
        acc.zero_()
        add_up[(B, triton.cdiv(R, 32))](x, acc, R, C, BR=32, BC=64)
        if x.dtype == torch.float32:
            return acc
        out = torch.empty((B, C), device=x.device, dtype=x.dtype)
        narrow[(triton.cdiv(B * C, 256),)](acc, out, B * C, B=256)
        return out
