# task: mean_last
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def mean_kernel(x, y, rows, cols, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, cols, BLOCK):
        at = start + tl.arange(0, BLOCK)
        acc += tl.load(x + row * stride + at, mask=at < cols, other=0.0).to(tl.float32)
    tl.store(y + row, tl.sum(acc, axis=0) / cols)


def _warps(cols):
    if cols <= 256:
        return 1
    if cols <= 2048:
        return 4
    return 8


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        warps = _warps(cols)
        if x.dtype == torch.float32 and warps < 8:
            warps *= 2
        y = torch.empty(rows, device=x.device, dtype=x.dtype)
        mean_kernel[(rows,)](x, y, rows, cols, x.stride(0), BLOCK=128, num_warps=warps)
        return y
