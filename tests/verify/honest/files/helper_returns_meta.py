# task: bias_gelu
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def bias_gelu_kernel(x_ptr, b_ptr, y_ptr, n, cols, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32) + tl.load(b_ptr + at % cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, x * 0.5 * (1.0 + tl.math.erf(x * 0.70710678118)), mask=mask)


def _meta(n: int) -> dict:
    if n < 2048:
        return {"BLOCK": 128, "num_warps": 1}
    return {"BLOCK": 1024, "num_warps": 4}


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))

    def forward(self, x):
        meta = _meta(x.numel())
        meta["num_stages"] = 2
        y = torch.empty_like(x)
        bias_gelu_kernel[lambda m: (triton.cdiv(x.numel(), m["BLOCK"]),)](x, self.bias, y, x.numel(), x.shape[-1], **meta)
        return y
