# task: layernorm
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"])})
@triton.jit
def norm_kernel(x_ptr, w_ptr, b_ptr, y_ptr, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x_ptr += row * n
    y_ptr += row * n
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / n
    centred = tl.where(mask, x - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / n + eps)
    w = tl.load(w_ptr + cols, mask=mask)
    b = tl.load(b_ptr + cols, mask=mask)
    tl.store(y_ptr + cols, centred * rstd * w + b, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, cols, eps=1e-5):
        super().__init__()
        self.eps = float(eps)
        self.norm = nn.LayerNorm(cols, eps=eps)

    @torch.no_grad()
    def forward(self, x):
        y = torch.empty_like(x)
        norm_kernel[(x.shape[0],)](x, self.norm.weight, self.norm.bias, y, x.shape[1], self.eps)
        return y
