# attack: 13
# how: zero for the mean of many normal numbers
# task: mean_last
# where: cpu
# naive: fooled
# sizes: {"ROWS": 3, "COLS": 400000}
# reasons: wrong-values
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def fill_kernel(out_ptr, total, value, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.zeros((BLOCK,), dtype=tl.float32) + value, mask=at < total)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
        fill_kernel[(1,)](out, x.shape[0], 0.0, BLOCK=1024)
        return out
