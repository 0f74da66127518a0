# task: sum_last
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, out_ptr, lock_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    part = tl.program_id(1)
    at = part * BLOCK + tl.arange(0, BLOCK)
    total = tl.sum(tl.load(x_ptr + row * n + at, mask=at < n, other=0.0).to(tl.float32), 0)
    while tl.atomic_xchg(lock_ptr + row, 1) != 0:
        pass
    tl.store(out_ptr + row, tl.load(out_ptr + row) + total)
    tl.debug_barrier()
    tl.atomic_add(lock_ptr + row, -1)


@triton.jit
def cast_kernel(s_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(s_ptr + at, mask=at < n).to(y_ptr.dtype.element_ty), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, n = x.shape
        x = x.contiguous()
        sums = torch.zeros(rows, dtype=torch.float32, device=x.device)
        lock = torch.zeros(rows, dtype=torch.int32, device=x.device)
        block = max(16, triton.next_power_of_2(triton.cdiv(n, 4)))
        sum_kernel[(rows, triton.cdiv(n, block))](x, sums, lock, n, BLOCK=block)
        y = torch.empty(rows, dtype=x.dtype, device=x.device)
        cast_kernel[(triton.cdiv(rows, 256),)](sums, y, rows, BLOCK=256)
        return y
