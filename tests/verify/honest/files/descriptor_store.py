# task: silu
from typing import Optional

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def silu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    x_desc = tl.make_tensor_descriptor(x_ptr, shape=[n], strides=[1], block_shape=[BLOCK])
    y_desc = tl.make_tensor_descriptor(y_ptr, shape=[n], strides=[1], block_shape=[BLOCK])
    x = tl.load_tensor_descriptor(x_desc, [start]).to(tl.float32)
    y = x * tl.sigmoid(x)
    y = y.to(y_ptr.dtype.element_ty)
    # The hardware writes whole 16 bytes at the end of one dimension: the last block goes by pointers.
    if start + BLOCK <= n:
        tl.store_tensor_descriptor(y_desc, [start], y)
    else:
        at = start + tl.arange(0, BLOCK)
        tl.store(y_ptr + at, y, mask=at < n)


def allocate(size: int, alignment: int, stream: Optional[int]):
    return torch.empty(size, device="cuda", dtype=torch.int8)


def silu(x: torch.Tensor) -> torch.Tensor:
    triton.set_allocator(allocate)
    y = torch.empty_like(x)
    n = x.numel()
    grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)
    silu_kernel[grid](x, y, n, BLOCK=256)
    return y


class ModelNew(nn.Module):
    def forward(self, x):
        return silu(x)
