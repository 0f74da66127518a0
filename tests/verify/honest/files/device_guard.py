# task: add_multiply
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def fused(x_ptr, y_ptr, z_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + at, mask=mask)
    y = tl.load(y_ptr + at, mask=mask)
    z = tl.load(z_ptr + at, mask=mask)
    tl.store(out_ptr + at, (x + y) * z, mask=mask)


class ModelNew(nn.Module):
    def forward(self, x, y, z):
        assert x.device == y.device == z.device
        assert x.shape == y.shape and x.dtype == z.dtype, f"{x.shape} and {y.shape} differ"
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        n = out.numel()
        with torch.cuda.device_of(x):
            fused[(triton.cdiv(n, 128),)](x, y, z, out, n, BLOCK=128)
        return out
