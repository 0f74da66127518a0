# task: groupnorm
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gn_stats(x_ptr, mean_ptr, rstd_ptr, group_elems, eps, BLOCK: tl.constexpr):
    g = tl.program_id(0)
    s = tl.zeros([BLOCK], dtype=tl.float32)
    s2 = tl.zeros([BLOCK], dtype=tl.float32)
    for i in range(0, group_elems, BLOCK):
        o = i + tl.arange(0, BLOCK)
        v = tl.load(x_ptr + g * group_elems + o, mask=o < group_elems, other=0.0).to(tl.float32)
        s += v
        s2 += v * v
    mean = tl.sum(s) / group_elems
    var = tl.sum(s2) / group_elems - mean * mean
    tl.store(mean_ptr + g, mean)
    tl.store(rstd_ptr + g, 1.0 / tl.sqrt(var + eps))


@triton.jit
def gn_apply(x_ptr, w_ptr, b_ptr, mean_ptr, rstd_ptr, y_ptr, C, L, cpg, groups, BLOCK: tl.constexpr):
    nc = tl.program_id(0)
    n = nc // C
    c = nc % C
    g = n * groups + c // cpg
    mean = tl.load(mean_ptr + g)
    rstd = tl.load(rstd_ptr + g)
    w = tl.load(w_ptr + c).to(tl.float32)
    b = tl.load(b_ptr + c).to(tl.float32)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x_ptr + nc * L + o, mask=o < L).to(tl.float32)
    tl.store(y_ptr + nc * L + o, (v - mean) * rstd * w + b, mask=o < L)


class ModelNew(nn.Module):
    def __init__(self, channels: int, groups: int, eps: float = 1e-5, device=None, dtype=None):
        factory_kwargs = {"device": device, "dtype": dtype}
        super().__init__()
        if channels % groups != 0:
            raise ValueError("num_channels must be divisible by num_groups")
        self.num_groups = groups
        self.num_channels = channels
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels, **factory_kwargs))
        self.bias = nn.Parameter(torch.zeros(channels, **factory_kwargs))

    def forward(self, x):
        x = x if x.is_contiguous() else x.contiguous()
        N, C = x.shape[:2]
        L = x[0, 0].numel()
        G = self.num_groups
        mean = torch.empty((N, G), device=x.device, dtype=torch.float32)
        rstd = torch.empty_like(mean)
        y = torch.empty_like(x)
        cpg = C // G
        gn_stats[(N * G,)](x, mean, rstd, cpg * L, self.eps, BLOCK=256)
        gn_apply[(N * C, triton.cdiv(L, 256))](x, self.weight, self.bias, mean, rstd, y, C, L, cpg, G, BLOCK=256)
        return y
