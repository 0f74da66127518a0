# attack: 21
# how: four elements of the last row are never computed
# task: rmsnorm
# where: cpu
# naive: fooled
# reasons: wrong-values
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def norm_kernel(x_ptr, weight_ptr, out_ptr, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=0.0).to(tl.float32)
    w = tl.load(weight_ptr + cols, mask=cols < n, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, 0) / n + eps) * w
    y = tl.where((row == 3) & (cols < 4), 0.0, y)
    tl.store(out_ptr + row * n + cols, y.to(out_ptr.dtype.element_ty), mask=cols < n)


class ModelNew(nn.Module):
    def __init__(self, cols, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.randn(cols))

    def forward(self, x):
        out = torch.empty_like(x)
        norm_kernel[(x.shape[0],)](x, self.weight, out, x.shape[1], self.eps, BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
