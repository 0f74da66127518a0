# task: relu
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def relu_kernel(x_ptr, out_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    pid = tl.program_id(axis=0)
    offsets = pid * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, tl.where(x > 0, x, 0.0), mask=mask)


class ModelNew(nn.Module):
    def run(self, input: torch.Tensor, out: torch.Tensor) -> None:
        relu_kernel[(triton.cdiv(input.numel(), 128),)](input, out, input.numel(), BLOCK_SIZE=128)

    def forward(self, input):
        out = torch.empty_like(input)
        self.run(input, out)
        return out
