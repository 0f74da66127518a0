# task: elu
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def elu_kernel(x_ptr, y_ptr, n, alpha, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + o, mask=o < n, other=0.0).to(tl.float32)
    tl.store(y_ptr + o, tl.where(x > 0, x, alpha * (tl.exp(tl.minimum(x, 0.0)) - 1.0)), mask=o < n)


class ModelNew(nn.Module):
    def __init__(self, alpha):
        super(ModelNew, self).__init__()
        self.act = nn.ELU(alpha=alpha)
        self.loss = nn.SmoothL1Loss()

    def forward(self, x):
        y = torch.empty_like(x)
        n = x.numel()
        elu_kernel[(triton.cdiv(n, 1024),)](x, y, n, self.act.alpha, BLOCK=1024)
        return y
