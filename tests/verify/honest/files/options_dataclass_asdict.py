# task: relu
import torch
import torch.nn as nn
import triton
import triton.language as tl
from dataclasses import asdict, dataclass, replace

@triton.jit
def relu_kernel(x_ptr, y_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    pid = tl.program_id(axis=0)
    offsets = pid * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(y_ptr + offsets, tl.where(x > 0, x, 0.0), mask=mask)

@dataclass
class Options:
    BLOCK_SIZE: int = 256
    num_warps: int = 4
    num_stages: int = 2


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.options = Options()

    def forward(self, x):
        n = x.numel()
        options = replace(self.options, BLOCK_SIZE=128) if n < 4096 else self.options
        meta = asdict(options)
        block = meta.pop("BLOCK_SIZE")
        y = torch.empty_like(x)
        relu_kernel[(triton.cdiv(n, block),)](x, y, n, BLOCK_SIZE=block, **meta)
        return y
