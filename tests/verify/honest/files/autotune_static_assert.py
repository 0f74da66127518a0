# task: softmax
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.autotune(
    configs=[triton.Config({"BLOCK": block}, num_warps=warps) for block, warps in ((128, 1), (1024, 4), (8192, 8), (16384, 16))],
    key=["COLS"],
)
@triton.jit
def softmax_kernel(x_ptr, y_ptr, COLS: tl.constexpr, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK >= COLS, "a row must fit into a block")
    tl.static_assert(BLOCK < 8 * COLS)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < COLS
    x = tl.load(x_ptr + row * COLS + at, mask=inside, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * COLS + at, e / tl.sum(e, axis=0), mask=inside)


class ModelNew(nn.Module):
    def forward(self, x):
        cols = x.shape[-1]
        y = torch.empty_like(x)
        softmax_kernel[(x.numel() // cols,)](x, y, COLS=cols)
        return y
