# task: rmsnorm
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def small_kernel(x_ptr, w_ptr, y_ptr, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / n + eps)
    w = tl.load(w_ptr + cols, mask=cols < n, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * n + cols, (x * scale * w).to(y_ptr.dtype.element_ty), mask=cols < n)


@triton.jit
def large_kernel(x_ptr, w_ptr, y_ptr, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    squares = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=0.0).to(tl.float32)
        squares += x * x
    scale = tl.rsqrt(tl.sum(squares, axis=0) / n + eps)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + cols, mask=cols < n, other=0.0).to(tl.float32)
        tl.store(y_ptr + row * n + cols, (x * scale * w).to(y_ptr.dtype.element_ty), mask=cols < n)


class ModelNew(nn.Module):
    """One block a row where it fits, a loop over blocks where it does not."""

    def __init__(self, cols: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(cols))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, n = x.shape
        y = torch.empty_like(x)
        kernel = small_kernel if n <= 48 else large_kernel
        block = triton.next_power_of_2(n) if n <= 48 else 32
        kernel[(rows,)](x, self.weight, y, n, self.eps, BLOCK=block)
        return y
