# attack: 15
# how: the same for a batch of products
# task: batched_matmul
# where: cpu
# naive: gpu
# reasons: wrong-values
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def bmm_kernel(
    a_ptr,
    b_ptr,
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
    batch = tl.program_id(2)
    a_ptr += batch * M * K
    b_ptr += batch * K * N
    out_ptr += batch * M * N

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

    tl.store(out_ptr + at, value.to(out_ptr.dtype.element_ty), mask=keep)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        a = a.contiguous()
        b = b.contiguous()
        batch, M, K = a.shape
        N = b.shape[2]
        out = torch.empty((batch, M, N), device=a.device, dtype=a.dtype)
        bmm_kernel[
            (
                triton.cdiv(M, 16),
                triton.cdiv(N, 16),
                batch,
            )
        ](a, b, out, M, N, K, a.stride(1), a.stride(2), b.stride(1), b.stride(2), BLOCK_M=16, BLOCK_N=16, BLOCK_K=16)
        return out
