# task: sum_last
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def fold_kernel(src, dst, width, src_stride, dst_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    part = tl.program_id(1)
    at = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(src + row * src_stride + at, mask=at < width, other=0.0).to(tl.float32)
    tl.store(dst + row * dst_stride + part, tl.sum(x, axis=0))


class ModelNew(nn.Module):
    """Tree reduction: each pass folds the row by a factor of 32."""

    def forward(self, x):
        rows, cols = x.shape
        width = cols
        current = x
        passes = 0
        while True:
            parts = triton.cdiv(width, 32)
            last = parts == 1
            target = torch.empty((rows, parts), device=x.device, dtype=x.dtype if last else torch.float32)
            fold_kernel[(rows, parts)](current, target, width, current.stride(0), target.stride(0), BLOCK=32)
            passes += 1
            if last:
                return target.view(rows)
            current, width = target, parts
