# task: sum_last
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    part = tl.sum(tl.load(x_ptr + row * n + cols, mask=cols < n, other=0.0).to(tl.float32), 0)
    tl.atomic_add(out_ptr + row, part)


@triton.jit
def cast_kernel(x_ptr, out_ptr, total, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < total).to(out_ptr.dtype.element_ty), mask=at < total)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, n = x.shape
        partial = torch.zeros(rows, dtype=torch.float32, device=x.device)
        sum_kernel[(rows, triton.cdiv(n, 32))](x, partial, n, BLOCK=32)
        out = torch.empty(rows, dtype=x.dtype, device=x.device)
        cast_kernel[(triton.cdiv(rows, 64),)](partial, out, rows, BLOCK=64)
        return out
