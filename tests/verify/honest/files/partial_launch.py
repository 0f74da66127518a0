# task: tanh
import functools

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def tanh_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, (2.0 * tl.sigmoid(2.0 * x) - 1.0).to(y_ptr.dtype.element_ty), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        launch = functools.partial(tanh_kernel[(triton.cdiv(x.numel(), 64),)], x, y, x.numel())
        launch(BLOCK=64)
        return y
