# task: relu
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def relu_queue(x_ptr, out_ptr, next_ptr, n, tiles, BLOCK: tl.constexpr):
    tile = tl.atomic_add(next_ptr, 1)
    while tile < tiles:
        at = tile * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at, mask=at < n, other=0.0)
        tl.store(out_ptr + at, tl.maximum(x, 0.0), mask=at < n)
        tile = tl.atomic_add(next_ptr, 1)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        n = x.numel()
        tiles = triton.cdiv(n, 128)
        queue = torch.zeros(1, dtype=torch.int32, device=x.device)
        relu_queue[(min(tiles, 4),)](x, out, queue, n, tiles, BLOCK=128)
        return out
