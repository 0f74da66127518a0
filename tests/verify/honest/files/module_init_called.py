# task: leaky_relu
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def leaky(x_ptr, y_ptr, n, slope, BLOCK: tl.constexpr = 256):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = offs < n
    x = tl.load(x_ptr + offs, mask=m, other=0.0)
    tl.store(y_ptr + offs, tl.where(x > 0, x, x * slope), mask=m)


class ModelNew(nn.Module):
    __constants__ = ["negative_slope"]
    negative_slope: float
    BLOCK_SIZE: int = 512
    WARPS = {256: 4, 512: 8}

    def __init__(self, negative_slope: float = 0.01):
        torch.nn.Module.__init__(self)
        self.negative_slope = float(negative_slope)

    @property
    def num_warps(self):
        return self.WARPS[self.BLOCK_SIZE]

    def forward(self, input):
        output = torch.empty_like(input)
        n = input.numel()
        grid = (triton.cdiv(n, ModelNew.BLOCK_SIZE),)
        leaky[grid](input, output, n, self.negative_slope, ModelNew.BLOCK_SIZE, num_warps=self.num_warps)
        return output

    def extra_repr(self) -> str:
        return "negative_slope={}".format(self.negative_slope)
