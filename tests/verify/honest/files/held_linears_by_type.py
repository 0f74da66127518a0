# task: gated_mlp_half
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gate_kernel(x_ptr, g_ptr, u_ptr, o_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    gate = tl.zeros((BM, BN), tl.float32)
    up = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        mask = (rn[None, :] < N) & (rk[:, None] < K)
        x = tl.load(x_ptr + rm[:, None] * K + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0)
        gate = tl.dot(x, tl.load(g_ptr + rn[None, :] * K + rk[:, None], mask=mask, other=0.0), gate)
        up = tl.dot(x, tl.load(u_ptr + rn[None, :] * K + rk[:, None], mask=mask, other=0.0), up)
    out = gate * tl.sigmoid(gate) * up
    tl.store(o_ptr + rm[:, None] * N + rn[None, :], out, mask=(rm[:, None] < M) & (rn[None, :] < N))


class Projection(nn.Module):
    def __init__(self, in_features, out_features, device=None, dtype=None):
        factory_kwargs = {"device": device, "dtype": dtype}
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=False, **factory_kwargs)


class ModelNew(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inner, outer, bias=False), nn.Identity(), nn.Linear(inner, outer, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = [layer for layer in self.layers if isinstance(layer, nn.Linear)]
        M, K = x.shape
        N = gate.out_features
        out = torch.empty((M, N), device=x.device, dtype=x.dtype)
        grid = (triton.cdiv(M, 32), triton.cdiv(N, 32))
        gate_kernel[grid](x, gate.weight, up.weight, out, M, N, K, BM=32, BN=32, BK=32)
        return out
