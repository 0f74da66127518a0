# task: relu
"""ReLU with Triton."""
import torch
import torch.nn as nn
import triton
import triton.language as tl
__all__ = ["ModelNew", "relu"]
__version__ = "1.0"

BLOCK: tl.constexpr = 256

@triton.jit
def relu_kernel(x_ptr, y_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    pid = tl.program_id(axis=0)
    offsets = pid * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(y_ptr + offsets, tl.where(x > 0, x, 0.0), mask=mask)

def relu(x):
    out = torch.empty_like(x)
    relu_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, out, x.numel(), BLOCK_SIZE=BLOCK)
    return out


class ModelNew(nn.Module):
    """Model with a Triton ReLU."""

    def forward(self, x):
        """Returns relu(x)."""
        return relu(x)
