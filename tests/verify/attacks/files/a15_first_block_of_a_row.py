# attack: 15
# how: the sum of a row is that of its first block, as many times as there are blocks
# task: sum_last
# where: cpu
# naive: fooled
# reasons: wrong-values
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    total = 0.0
    for start in range(0, cols, BLOCK):
        x = tl.load(x_ptr + row * cols + at, mask=start + at < cols, other=0.0)
        total += tl.sum(x.to(tl.float32), 0)
    tl.store(y_ptr + row, total)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[:-1], dtype=x.dtype, device=x.device)
        sum_kernel[(y.numel(),)](x, y, x.shape[-1], BLOCK=512)
        return y
