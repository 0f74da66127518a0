# task: layernorm
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def welford_combine(mean_1, m2_1, weight_1, mean_2, m2_2, weight_2):
    delta = mean_2 - mean_1
    new_weight = weight_1 + weight_2
    w2_over_w = tl.where(new_weight == 0.0, 0.0, weight_2 / new_weight)
    return (
        mean_1 + delta * w2_over_w,
        m2_1 + m2_2 + delta * delta * weight_1 * w2_over_w,
        new_weight,
    )


@triton.jit
def welford(mean, m2, weight, dim):
    return tl.reduce((mean, m2, weight), dim, welford_combine)


@triton.jit
def triton_per_fused_native_layer_norm_0(in_ptr0, in_ptr1, in_ptr2, out_ptr0, xnumel, rnumel, eps, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    rindex = tl.arange(0, RBLOCK)[None, :]
    rmask = rindex < rnumel
    tmp0 = tl.load(in_ptr0 + (rindex + rnumel * xindex), rmask & xmask, other=0.0).to(tl.float32)
    w = tl.broadcast_to(tl.where(rmask, 1.0, 0.0), [XBLOCK, RBLOCK])
    z = tl.full([XBLOCK, RBLOCK], 0.0, tl.float32)
    m, m2, n = welford(tmp0, z, w, 1)
    mean = m[:, None]
    var = (m2 / n)[:, None]
    rstd = tl.rsqrt(var + eps)
    g = tl.load(in_ptr1 + rindex, rmask, eviction_policy='evict_last', other=0.0).to(tl.float32)
    b = tl.load(in_ptr2 + rindex, rmask, eviction_policy='evict_last', other=0.0).to(tl.float32)
    tl.store(out_ptr0 + (rindex + rnumel * xindex), (tmp0 - mean) * rstd * g + b, rmask & xmask)


class ModelNew(nn.Module):
    def __init__(self, cols, eps):
        super().__init__()
        self.ln = nn.LayerNorm(cols, eps=eps)

    def forward(self, x):
        rows, cols = x.shape
        buf = torch.empty((rows, cols), device=x.device, dtype=x.dtype)
        triton_per_fused_native_layer_norm_0[(triton.cdiv(rows, 2),)](
            x, self.ln.weight, self.ln.bias, buf, rows, cols, self.ln.eps, XBLOCK=2, RBLOCK=triton.next_power_of_2(cols)
        )
        return buf
