# task: relu
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def relu_kernel(x_ptr, y_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    pid = tl.program_id(axis=0)
    offsets = pid * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(y_ptr + offsets, tl.where(x > 0, x, 0.0), mask=mask)

class Elementwise(nn.Module):
    """Launches a kernel over all elements."""

    def __init__(self, kernel, block: int = 256):
        super().__init__()
        self.kernel, self.block = kernel, block

    def grid(self, n: int):
        return (triton.cdiv(n, self.block),)

    def forward(self, x):
        y = torch.empty_like(x)
        self.kernel[self.grid(x.numel())](x, y, x.numel(), BLOCK_SIZE=self.block)
        return y


class Stack(nn.Module):
    def __init__(self, depth: int):
        super().__init__()
        self.first = Elementwise(relu_kernel)
        self.rest = nn.ModuleList(Elementwise(relu_kernel, 64 << i) for i in range(depth - 1))

    def forward(self, x):
        x = self.first(x)
        for layer in self.rest:
            x = layer(x)
        return x


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.stack = Stack(2)

    def forward(self, x):
        return self.stack(x)
