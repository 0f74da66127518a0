# task: mean_last
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def k(x_ptr, o_ptr, n_cols, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    acc = tl.zeros((BLOCK,), tl.float32)
    for i in tl.range(0, tl.cdiv(n_cols, BLOCK), num_stages=2, disallow_acc_multi_buffer=True):
        cols = i.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        acc += tl.load(x_ptr + row * stride + cols, mask=cols < n_cols, other=0.0)
    tl.store(o_ptr + row, tl.sum(acc, 0) / n_cols.to(tl.float32))


class ModelNew(nn.Module):
    def forward(self, x):
        o = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
        k[(x.shape[0],)](x, o, x.shape[1], x.stride(0), BLOCK=128)
        return o
