# task: rmsnorm
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def rms_kernel(x_ptr, w_ptr, y_ptr, F, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    nn = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * F + nn, mask=nn < F, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / F + eps)
    w = tl.load(w_ptr + nn, mask=nn < F, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * F + nn, x * scale * w, mask=nn < F)


class ModelNew(nn.Module):
    def __init__(self, cols, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(cols))

    def forward(self, x):
        rows, cols = x.shape
        y = torch.empty_like(x)
        rms_kernel[(rows,)](x, self.weight, y, cols, self.eps, BLOCK=triton.next_power_of_2(cols))
        return y
