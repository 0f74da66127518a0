# attack: 22
# how: tiles of a descriptor overlap: each program doubles what another has stored there
# task: squared_relu
# where: cpu
# naive: fooled
# reasons: race, wrong-result
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def square_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK
    x_desc = tl.make_tensor_descriptor(x_ptr, [n], [1], [BLOCK])
    y_desc = tl.make_tensor_descriptor(y_ptr, [n], [1], [BLOCK])
    x = tl.maximum(x_desc.load([at]), 0.0)
    y_desc.store([at], x)
    before = y_desc.load([at + BLOCK])
    y_desc.store([at + BLOCK], before)
    y_desc.store([at], x * x)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        square_kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
        return y
