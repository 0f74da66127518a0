# task: relu
import torch
import torch.nn as nn
import triton
import triton.language as tl
from enum import Enum, IntEnum


@triton.jit
def relu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = offs < n
    tl.store(y_ptr + offs, tl.maximum(tl.load(x_ptr + offs, mask=m, other=0.0), 0.0), mask=m)


class Mode(str, Enum):
    FAST = "fast"
    SAFE = "safe"


class Block(IntEnum):
    SMALL = 128
    LARGE = 1024


class ModelNew(nn.Module):
    def __init__(self, mode=Mode.FAST):
        super().__init__()
        self.mode = Mode(mode)

    def forward(self, x):
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        n = x.numel()
        block = Block.LARGE if self.mode == Mode.FAST and n > 4096 else Block.SMALL
        relu_kernel[(triton.cdiv(n, int(block)),)](x, y, n, BLOCK=int(block))
        return y
