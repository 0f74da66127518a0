# attack: 25
# how: fresh memory with strides of its own, half of it written
# task: relu
# where: cpu
# naive: chance
# reasons: non-finite, wrong-values
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def relu_kernel(x_ptr, out_ptr, total, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < total, other=0.0)
    tl.store(out_ptr + at, tl.maximum(x, 0.0), mask=at < total)


class ModelNew(nn.Module):
    def forward(self, x):
        out = x.new_empty_strided(x.shape, (x.shape[1], 1))
        relu_kernel[(1,)](x, out, x.numel(), BLOCK=128)
        return out
