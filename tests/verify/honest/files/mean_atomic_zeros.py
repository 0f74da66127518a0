# task: mean_last
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mean_atomic(x_ptr, o_ptr, N, inv_n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x_ptr + row * N + cols, mask=cols < N, other=0.0).to(tl.float32)
    tl.atomic_add(o_ptr + row, tl.sum(v) * inv_n, sem="relaxed")


@triton.jit
def cast_kernel(s_ptr, d_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(d_ptr + o, tl.load(s_ptr + o, mask=o < n).to(d_ptr.dtype.element_ty), mask=o < n)


class ModelNew(nn.Module):
    def forward(self, x):
        M, N = x.shape
        acc = torch.zeros(M, device=x.device, dtype=torch.float32)
        mean_atomic[(M, triton.cdiv(N, 128))](x, acc, N, 1.0 / N, BLOCK=128)
        if x.dtype == torch.float32:
            return acc
        out = torch.empty(M, device=x.device, dtype=x.dtype)
        cast_kernel[(triton.cdiv(M, 128),)](acc, out, M, BLOCK=128)
        return out
