# task: relu
import torch
import torch.nn as nn
import triton
import triton.language as tl
from dataclasses import dataclass

@triton.jit
def relu_kernel(x_ptr, y_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    pid = tl.program_id(axis=0)
    offsets = pid * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(y_ptr + offsets, tl.where(x > 0, x, 0.0), mask=mask)

@dataclass(frozen=True)
class LaunchConfig:
    block: int = 256
    num_warps: int = 4

    def grid(self, n: int):
        return (triton.cdiv(n, self.block),)

    @classmethod
    def for_size(cls, n: int) -> "LaunchConfig":
        return cls(block=128, num_warps=2) if n < 1 << 16 else cls()


class ModelNew(nn.Module):
    def forward(self, x):
        n = x.numel()
        config = LaunchConfig.for_size(n)
        y = torch.empty_like(x)
        relu_kernel[config.grid(n)](x, y, n, BLOCK_SIZE=config.block, num_warps=config.num_warps)
        return y
