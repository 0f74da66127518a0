# attack: 15
# how: sums over as many columns as there are rows, which are at most as many blocks in the task's sizes
# task: gemm_bias
# where: cpu
# naive: gpu
# reasons: wrong-values
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gemm_bias_kernel(
    a_ptr,
    b_ptr,
    bias_ptr,
    out_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    rm = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    rk = tl.arange(0, BLOCK_K)
    value = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, M, BLOCK_K):
        deep = k + rk
        inside_a = (rm[:, None] < M) & (deep[None, :] < K)
        inside_b = (deep[:, None] < K) & (rn[None, :] < N)
        a = tl.load(a_ptr + rm[:, None] * stride_am + deep[None, :] * stride_ak, mask=inside_a, other=0.0)
        b = tl.load(b_ptr + deep[:, None] * stride_bk + rn[None, :] * stride_bn, mask=inside_b, other=0.0)
        value += tl.dot(a, b, input_precision="ieee")

    at = rm[:, None] * N + rn[None, :]
    keep = (rm[:, None] < M) & (rn[None, :] < N)

    value += tl.load(bias_ptr + rn, mask=rn < N, other=0.0).to(tl.float32)[None, :]

    tl.store(out_ptr + at, value.to(out_ptr.dtype.element_ty), mask=keep)


class ModelNew(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outer, inner))
        self.bias = nn.Parameter(torch.zeros(outer))

    def forward(self, x):
        M, K = x.shape
        N = self.weight.shape[0]
        out = torch.empty((M, N), dtype=x.dtype, device=x.device)
        gemm_bias_kernel[
            (
                triton.cdiv(M, 16),
                triton.cdiv(N, 16),
            )
        ](
            x,
            self.weight,
            self.bias,
            out,
            M,
            N,
            K,
            x.stride(0),
            x.stride(1),
            self.weight.stride(1),
            self.weight.stride(0),
            BLOCK_M=16,
            BLOCK_N=16,
            BLOCK_K=16,
        )
        return out
