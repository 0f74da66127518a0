# task: gated_mlp_half
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def linear_kernel(
    x_ptr, w_ptr, b_ptr, y_ptr, M, N, K, sxm, sxk, swn, swk, sym, syn,
    HAS_BIAS: tl.constexpr, ACT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):
    pid_m = tl.program_id(0)
    pid_n = tl.program_id(1)
    rm = pid_m * BM + tl.arange(0, BM)
    rn = pid_n * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        x = tl.load(x_ptr + rm[:, None] * sxm + (k + rk)[None, :] * sxk, mask=(rm[:, None] < M) & (k + rk[None, :] < K), other=0.0)
        w = tl.load(w_ptr + rn[None, :] * swn + (k + rk)[:, None] * swk, mask=(rn[None, :] < N) & (k + rk[:, None] < K), other=0.0)
        acc += tl.dot(x, w)
    if HAS_BIAS:
        acc += tl.load(b_ptr + rn, mask=rn < N, other=0.0).to(tl.float32)[None, :]
    if ACT == "relu":
        acc = tl.maximum(acc, 0.0)
    elif ACT == "gelu":
        acc = 0.5 * acc * (1.0 + tl.erf(acc * 0.7071067811865476))
    elif ACT == "silu":
        acc = acc * tl.sigmoid(acc)
    tl.store(y_ptr + rm[:, None] * sym + rn[None, :] * syn, acc.to(y_ptr.dtype.element_ty), mask=(rm[:, None] < M) & (rn[None, :] < N))

@triton.jit
def gate_kernel(g_ptr, u_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    g = tl.load(g_ptr + at, mask=mask, other=0.0).to(tl.float32)
    u = tl.load(u_ptr + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, g * tl.sigmoid(g) * u, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.gate = nn.Parameter(torch.randn(outer, inner) * inner**-0.5)
        self.up = nn.Parameter(torch.randn(outer, inner) * inner**-0.5)

    def _project(self, x, weight, out):
        (M, K), N = x.shape, weight.shape[0]
        linear_kernel[(triton.cdiv(M, 32), triton.cdiv(N, 32))](
            x, weight, weight, out, M, N, K, *x.stride(), *weight.stride(), *out.stride(), HAS_BIAS=False, ACT="none", BM=32, BN=32, BK=32)

    def forward(self, x):
        buffer = torch.empty((2, x.shape[0], self.gate.shape[0]), device=x.device, dtype=torch.float32)
        g, u = buffer[0], buffer[1]
        for weight, out in zip((self.gate, self.up), (g, u)):
            self._project(x, weight, out)
        y = torch.empty(g.shape, device=x.device, dtype=x.dtype)
        gate_kernel[(triton.cdiv(y.numel(), 256),)](g, u, y, y.numel(), BLOCK=256)
        return y
