# task: sigmoid
import torch
import torch.nn as nn
import triton
import triton.language as tl


def _next_pow2(n: int) -> int:
    n -= 1
    n |= n >> 1
    n |= n >> 2
    n |= n >> 4
    n |= n >> 8
    n |= n >> 16
    return n + 1


def _pow2_loop(n):
    p = 1
    while p < n:
        p *= 2
    return p


@triton.jit
def sigmoid_rows(x_ptr, y_ptr, stride_xm, stride_ym, N, BLOCK_N: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK_N)
    mask = cols < N
    x = tl.load(x_ptr + row * stride_xm + cols, mask=mask, other=0.0).to(tl.float32)
    y = 1.0 / (1.0 + tl.exp(-x))
    tl.store(y_ptr + row * stride_ym + cols, y, mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        assert x.dim() >= 1
        N = x.shape[-1]
        x2 = x.reshape(-1, N)
        M = x2.shape[0]
        y = torch.empty_like(x2)
        BLOCK_N = max(16, min(_next_pow2(N), _pow2_loop(N)))
        num_warps = 4
        if BLOCK_N >= 2048:
            num_warps = 8
        if BLOCK_N >= 8192:
            num_warps = 16
        sigmoid_rows[(M,)](x2, y, x2.stride(0), y.stride(0), N, BLOCK_N, num_warps=num_warps)
        return y.reshape(x.shape)
