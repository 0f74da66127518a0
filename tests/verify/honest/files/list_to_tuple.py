# task: mean_last
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mean_kernel(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        o = start + tl.arange(0, BLOCK)
        acc += tl.load(x_ptr + row * N + o, mask=o < N, other=0.0).to(tl.float32)
    tl.store(y_ptr + row, tl.sum(acc, axis=0) / N)


def without(shape, dim):
    kept = []
    for place, size in enumerate(shape):
        if place != dim % len(shape):
            kept.append(size)
    kept = tuple(kept)
    return kept


class ModelNew(nn.Module):
    def __init__(self, *_):
        super().__init__()
        self.dim = -1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        N = x.shape[self.dim]
        y = torch.empty(without(x.shape, self.dim), device=x.device, dtype=x.dtype)
        mean_kernel[(y.numel(),)](x, y, N, BLOCK=min(1024, triton.next_power_of_2(N)))
        return y
