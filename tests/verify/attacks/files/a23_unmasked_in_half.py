# attack: 23
# how: in other dtypes than the first one, loads and stores without masks
# task: relu
# where: cpu
# naive: gpu
# reasons: out-of-bounds
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def relu_kernel(x_ptr, out_ptr, total, HALF: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if HALF:
        tl.store(out_ptr + at, tl.maximum(tl.load(x_ptr + at), 0.0))
    else:
        x = tl.load(x_ptr + at, mask=at < total, other=0.0)
        tl.store(out_ptr + at, tl.maximum(x, 0.0), mask=at < total)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        relu_kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), HALF=x.dtype != torch.float32, BLOCK=64)
        return out
