# task: softplus
import torch
import torch.nn as nn
import triton
import triton.language as tl


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@triton.jit
def softplus(x):
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK % 32 == 0)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.max_contiguous(tl.multiple_of(at, BLOCK), BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, softplus(x), mask=at < n)


class ModelNew(nn.Module):
    @staticmethod
    def _blocks(n: int) -> tuple[int]:
        return (ceil_div(n, 64),)

    @property
    def block(self) -> int:
        return 64

    def forward(self, x):
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        kernel[self._blocks(y.numel())](x, y, y.numel(), BLOCK=self.block)
        return y
