# task: axpy_relu
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def axpy_kernel(x_ptr, y_ptr, out_ptr, n, a, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, tl.maximum(a * x + y, 0.0).to(out_ptr.dtype.element_ty), mask=at < n)


class ModelNew(nn.Module):
    CHUNK = 3

    def forward(self, x, y):
        out = torch.empty_like(x)
        for start in range(0, x.shape[0], self.CHUNK):
            stop = min(start + self.CHUNK, x.shape[0])
            part = x[start:stop]
            axpy_kernel[(triton.cdiv(part.numel(), 128),)](part, y[start:stop], out[start:stop], part.numel(), 2.5, BLOCK=128)
        return out
