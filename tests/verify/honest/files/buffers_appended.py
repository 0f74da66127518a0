# task: sum_last
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def part_sum(x_ptr, out_ptr, cols, stride, start, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = start + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + at, mask=(at < cols) & (at < start + width), other=0.0).to(tl.float32)
    tl.store(out_ptr + row, tl.sum(x, axis=0))


@triton.jit
def add_in(acc_ptr, part_ptr, rows, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < rows
    total = tl.load(acc_ptr + at, mask=mask, other=0.0) + tl.load(part_ptr + at, mask=mask, other=0.0)
    tl.store(acc_ptr + at, total, mask=mask)


@triton.jit
def convert(src, dst, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dst + at, tl.load(src + at, mask=at < n, other=0.0), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        partials = []
        width = 1024
        for start in range(0, cols, width):
            part = torch.empty(rows, device=x.device, dtype=torch.float32)
            part_sum[(rows,)](x, part, cols, x.stride(0), start, width, BLOCK=1024)
            partials.append(part)
        total, *rest = partials
        grid = (triton.cdiv(rows, 64),)
        for part in rest:
            add_in[grid](total, part, rows, BLOCK=64)
        out = torch.empty((rows,), device=x.device, dtype=x.dtype)
        convert[grid](total, out, rows, BLOCK=64)
        return out
