# task: relu
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def relu_kernel(x_ptr, out_ptr, n, MASKED: tl.constexpr, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    at = pid * BLOCK + tl.arange(0, BLOCK)
    whole = EVEN or (pid + 1) * BLOCK <= n
    if whole and not MASKED:
        tl.store(out_ptr + at, tl.maximum(tl.load(x_ptr + at), 0.0))
    elif MASKED or not whole or n == 0:
        x = tl.load(x_ptr + at, mask=at < n, other=0.0)
        tl.store(out_ptr + at, tl.maximum(x, 0.0), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        n = x.numel()
        relu_kernel[(triton.cdiv(n, 128),)](x, out, n, False, n % 128 == 0, BLOCK=128)
        return out
