# attack: 16
# how: in half precision alone, softmax without subtracting the maximum
# task: softmax
# where: cpu
# naive: gpu
# reasons: non-finite, wrong-values
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def soft(x_ptr, out_ptr, cols, HALF: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + at, mask=at < cols, other=float("-inf")).to(tl.float32)
    if not HALF:
        x = x - tl.max(x, 0)
    e = tl.exp(x)
    tl.store(out_ptr + row * cols + at, (e / tl.sum(e, 0)).to(out_ptr.dtype.element_ty), mask=at < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        cols = x.shape[-1]
        soft[(x.numel() // cols,)](x, out, cols, HALF=x.dtype == torch.float16, BLOCK=triton.next_power_of_2(cols))
        return out
