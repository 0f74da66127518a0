# task: max_last
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def max_kernel(x_ptr, best_ptr, cols, BLOCK: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    at = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + at, mask=at < cols, other=float("-inf")).to(tl.float32)
    (best_ptr + row).atomic_max(x.max(0), sem="relaxed")


@triton.jit
def cast_kernel(best_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(best_ptr + at, mask=at < n, other=0.0), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        best = torch.full((rows,), float("-inf"), device=x.device, dtype=torch.float32)
        max_kernel[(rows, triton.cdiv(cols, 32))](x, best, cols, BLOCK=32)
        out = torch.empty(rows, device=x.device, dtype=x.dtype)
        cast_kernel[(triton.cdiv(rows, 64),)](best, out, rows, BLOCK=64)
        return out
