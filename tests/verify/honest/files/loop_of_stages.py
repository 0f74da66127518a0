# task: softsign
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def magnitude_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.abs(tl.load(x_ptr + at, mask=at < n, other=0.0)), mask=at < n)


@triton.jit
def divide_kernel(x_ptr, y_ptr, z_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(z_ptr + at, (x / (1.0 + y)).to(z_ptr.dtype.element_ty), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        n = x.numel()
        grid = (triton.cdiv(n, 256),)
        size, ratio = torch.empty_like(x), torch.empty_like(x)
        for kernel, tensors in ((magnitude_kernel, (x, size)), (divide_kernel, (x, size, ratio))):
            kernel[grid](*tensors, n, BLOCK=256)
        return ratio
