# task: rmsnorm
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rms_norm_fwd(x, w, y, stride: tl.constexpr, n: tl.constexpr, eps: tl.constexpr, BLOCK: tl.constexpr) -> None:
    row = tl.program_id(axis=0)
    offs = tl.arange(0, BLOCK)
    valid = offs < n
    values = tl.load(x + row * stride + offs, mask=valid, other=0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(values * values) / n + eps)
    tl.store(y + row * stride + offs, values * rstd * tl.load(w + offs, mask=valid, other=0).to(tl.float32), mask=valid)


class ModelNew(nn.Module):
    def __init__(self, hidden: int, eps: float = 1e-6):
        super().__init__()
        self.hidden = hidden
        self.eps = float(eps)
        self.weight = nn.Parameter(torch.ones(hidden), requires_grad=False)
        self.block = max(16, 1 << (hidden - 1).bit_length())
        self.num_warps = min(max(self.block // 256, 1), 8)

    def extra_repr(self) -> str:
        return f"hidden={self.hidden}, eps={self.eps:.1e}"

    def forward(self, x):
        x2 = x.view(-1, self.hidden)
        y2 = torch.empty_like(x2)
        rms_norm_fwd[(x2.size(0),)](
            x2.detach(), self.weight, y2, x2.stride(0), self.hidden, self.eps, BLOCK=self.block, num_warps=self.num_warps
        )
        return y2.view(x.size())
