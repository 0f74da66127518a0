# task: softmax
import torch
import torch.nn as nn
import triton
import triton.language as tl
import math

@triton.jit
def softmax_kernel(out_ptr, in_ptr, in_stride, out_stride, n_cols, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK_SIZE)
    mask = cols < n_cols
    x = tl.load(in_ptr + row * in_stride + cols, mask=mask, other=-float("inf")).to(tl.float32)
    x = x - tl.max(x, axis=0)
    num = tl.exp(x)
    tl.store(out_ptr + row * out_stride + cols, num / tl.sum(num, axis=0), mask=mask)

class ModelNew(nn.Module):
    def forward(self, x):
        *lead, cols = x.shape
        rows = math.prod(lead)
        lead.append(cols)
        y = torch.empty(lead, device=x.device, dtype=x.dtype)
        softmax_kernel[(rows,)](y, x.contiguous(), cols, cols, cols, BLOCK_SIZE=triton.next_power_of_2(cols), num_warps=4)
        return y
