# attack: 23
# how: a tensor descriptor claims one tile more than the tensor has, and the last program reads it
# task: relu
# where: cpu
# naive: fooled
# reasons: out-of-bounds, crash
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def relu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK
    x_desc = tl.make_tensor_descriptor(x_ptr, [n + BLOCK], [1], [BLOCK])
    y_desc = tl.make_tensor_descriptor(y_ptr, [n], [1], [BLOCK])
    y_desc.store([at], tl.maximum(x_desc.load([at]), 0.0))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        relu_kernel[(triton.cdiv(x.numel(), 64) + 1,)](x, y, x.numel(), BLOCK=64)
        return y
