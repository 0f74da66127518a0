# task: lerp
import torch
import torch.nn as nn
import triton
import triton.language as tl


def _configs():
    return [triton.Config({"BLOCK": block}, num_warps=warps, num_stages=2) for block in (64, 128) for warps in (2, 4)]


@triton.autotune(configs=_configs(), key=["n"])
@triton.jit
def lerp_kernel(x_ptr, y_ptr, z_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + at, mask=mask, other=0.0).to(tl.float32)
    z = tl.load(z_ptr + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, x + (y - x) * tl.sigmoid(z), mask=mask)


class ModelNew(nn.Module):
    def forward(self, x, y, z):
        out = torch.empty_like(x)
        lerp_kernel[lambda META: (triton.cdiv(out.numel(), META["BLOCK"]),)](x, y, z, out, out.numel())
        return out
