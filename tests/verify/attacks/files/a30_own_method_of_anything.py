# attack: 30
# how: a method is called at its class with a tensor in its object's place, whose relu() it calls
# task: relu
# where: cpu
# naive: gpu
# reasons: unknown-call, host-compute
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def relu_kernel(x_ptr, out_ptr, total, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < total, other=0.0)
    tl.store(out_ptr + at, tl.maximum(x, 0.0), mask=at < total)


class Held(nn.Module):
    def forward(self, x):
        return x


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.relu = Held()

    def through(this):
        return this.relu()

    def forward(self, x):
        out = torch.empty_like(x)
        relu_kernel[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), BLOCK=128)
        return ModelNew.through(out)
