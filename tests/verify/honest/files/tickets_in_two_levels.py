# task: sum_last
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, part_ptr, half_ptr, low_ptr, high_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    part = tl.program_id(1)
    half = part // 2
    v = tl.zeros((BLOCK,), tl.float32)
    for start in range(part * BLOCK, cols, 4 * BLOCK):
        at = start + tl.arange(0, BLOCK)
        v += tl.load(x_ptr + row * cols + at, mask=at < cols, other=0.0).to(tl.float32)
    tl.store(part_ptr + row * 4 + part, tl.sum(v, 0))
    if tl.atomic_add(low_ptr + row * 2 + half, 1) == 1:
        both = tl.load(part_ptr + row * 4 + half * 2) + tl.load(part_ptr + row * 4 + half * 2 + 1)
        tl.store(half_ptr + row * 2 + half, both)
        if tl.atomic_add(high_ptr + row, 1) == 1:
            total = tl.load(half_ptr + row * 2) + tl.load(half_ptr + row * 2 + 1)
            tl.store(out_ptr + row, total)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        part = torch.empty((rows, 4), dtype=torch.float32, device=x.device)
        half = torch.empty((rows, 2), dtype=torch.float32, device=x.device)
        low = torch.zeros((rows, 2), dtype=torch.int32, device=x.device)
        high = torch.zeros((rows,), dtype=torch.int32, device=x.device)
        out = torch.empty((rows,), dtype=x.dtype, device=x.device)
        sum_kernel[(rows, 4)](x, part, half, low, high, out, cols, BLOCK=16)
        return out
