# task: cumsum_exclusive
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def add(a, b):
    return a + b


@triton.jit
def sums(x, part, C, NB, B: tl.constexpr):
    r, j = tl.program_id(0), tl.program_id(1)
    c = j * B + tl.arange(0, B)
    tl.store(part + r * NB + j, tl.reduce(tl.load(x + r * C + c, mask=c < C, other=0.0).to(tl.float32), 0, add))


@triton.jit
def scan(x, part, o, C, NB, B: tl.constexpr, NBP: tl.constexpr):
    r, j = tl.program_id(0), tl.program_id(1)
    b = tl.arange(0, NBP)
    before = tl.sum(tl.load(part + r * NB + b, mask=b < j, other=0.0))
    c = j * B + tl.arange(0, B)
    v = tl.load(x + r * C + c, mask=c < C, other=0.0).to(tl.float32)
    tl.store(o + r * C + c, tl.associative_scan(v, 0, add) - v + before, mask=c < C)


class ModelNew(nn.Module):
    def forward(self, x):
        R, C = x.shape
        B = 64
        NB = triton.cdiv(C, B)
        part = torch.empty((R, NB), dtype=torch.float32, device=x.device)
        o = torch.empty_like(x)
        sums[(R, NB)](x, part, C, NB, B=B)
        scan[(R, NB)](x, part, o, C, NB, B=B, NBP=triton.next_power_of_2(NB))
        return o
