# task: layernorm
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def stats_kernel(x_ptr, mean_ptr, rstd_ptr, N, stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    s = tl.zeros([BLOCK], tl.float32)
    for off in range(0, N, BLOCK):
        c = off + tl.arange(0, BLOCK)
        s += tl.load(x_ptr + row * stride + c, mask=c < N, other=0.0).to(tl.float32)
    mean = tl.sum(s, 0) / N
    v = tl.zeros([BLOCK], tl.float32)
    for off in range(0, N, BLOCK):
        c = off + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * stride + c, mask=c < N, other=0.0).to(tl.float32)
        d = tl.where(c < N, x - mean, 0.0)
        v += d * d
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, 1 / tl.sqrt(tl.sum(v, 0) / N + eps))


@triton.jit
def apply_kernel(x_ptr, mean_ptr, rstd_ptr, w_ptr, b_ptr, y_ptr, N, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = c < N
    x = tl.load(x_ptr + row * stride + c, mask=mask, other=0.0).to(tl.float32)
    y = (x - tl.load(mean_ptr + row)) * tl.load(rstd_ptr + row)
    tl.store(y_ptr + row * stride + c, y * tl.load(w_ptr + c, mask=mask, other=0.0) + tl.load(b_ptr + c, mask=mask, other=0.0), mask=mask)


class ModelNew(nn.Module):
    def __init__(self, normalized_shape, eps=1e-5, elementwise_affine=True):
        super().__init__()
        if isinstance(normalized_shape, int):
            normalized_shape = (normalized_shape,)
        self.normalized_shape = tuple(normalized_shape)
        self.eps = eps
        if elementwise_affine:
            self.weight = nn.Parameter(torch.ones(*self.normalized_shape))
            self.bias = nn.Parameter(torch.zeros(*self.normalized_shape))

    def forward(self, x):
        M, N = x.shape
        mean, rstd = (torch.empty((M,), dtype=torch.float32, device=x.device) for _ in range(2))
        stats_kernel[(M,)](x, mean, rstd, N, x.stride(0), self.eps, BLOCK=64)
        y = torch.empty_like(x)
        apply_kernel[(M, triton.cdiv(N, 64))](x, mean, rstd, self.weight, self.bias, y, N, x.stride(0), BLOCK=64)
        return y
