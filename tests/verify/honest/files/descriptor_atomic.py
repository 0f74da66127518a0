# task: sum_last
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sums_kernel(x_ptr, total_ptr, rows, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + at, mask=at < cols, other=0.0).to(tl.float32)
    total = tl.make_tensor_descriptor(total_ptr, [rows, 4], [4, 1], [1, 4])
    lane = tl.arange(0, 4)[None, :]
    total.atomic_add([row, 0], tl.where(lane == 0, tl.sum(x, 0), 0.0))


@triton.jit
def first_kernel(total_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(total_ptr + at * 4, mask=at < n, other=0.0), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        total = torch.zeros((rows, 4), device=x.device, dtype=torch.float32)
        y = torch.empty(rows, device=x.device, dtype=x.dtype)
        sums_kernel[(rows, triton.cdiv(cols, 32))](x, total, rows, cols, BLOCK=32)
        first_kernel[(triton.cdiv(rows, 64),)](total, y, rows, BLOCK=64)
        return y
