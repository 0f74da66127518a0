# task: matmul
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gemm_lock(A, B, C, acc_buf, locks, counts, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr):
    pid = tl.program_id(0)
    pid_k = tl.program_id(1)
    tiles_n = tl.cdiv(N, BN)
    rm = (pid // tiles_n) * BM + tl.arange(0, BM)
    rn = (pid % tiles_n) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(pid_k * BK, K, BK * SPLIT):
        rk = k + tl.arange(0, BK)
        a = tl.load(A + rm[:, None] * K + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0)
        b = tl.load(B + rk[:, None] * N + rn[None, :], mask=(rk[:, None] < K) & (rn[None, :] < N), other=0.0)
        acc = tl.dot(a, b, acc)
    at = rm[:, None] * N + rn[None, :]
    inside = (rm[:, None] < M) & (rn[None, :] < N)
    while tl.atomic_cas(locks + pid, 0, 1) == 1:
        pass
    count = tl.load(counts + pid)
    if count == 0:
        tl.atomic_xchg(counts + pid, 1)
    else:
        acc += tl.load(acc_buf + at, mask=inside, other=0.0)
    tl.store(acc_buf + at, acc, mask=inside)
    tl.debug_barrier()
    tl.atomic_xchg(locks + pid, 0)


@triton.jit
def cast_kernel(src, dst, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dst + at, tl.load(src + at, mask=at < n, other=0.0).to(dst.dtype.element_ty), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, a, b):
        M, K = a.shape
        N = b.shape[1]
        BM = BN = 32
        tiles = triton.cdiv(M, BM) * triton.cdiv(N, BN)
        locks = torch.zeros(tiles, dtype=torch.int32, device=a.device)
        counts = torch.zeros_like(locks)
        buf = torch.empty((M, N), dtype=torch.float32, device=a.device)
        gemm_lock[(tiles, 3)](a, b, buf, buf, locks, counts, M, N, K, BM, BN, 16, SPLIT=3)
        out = torch.empty((M, N), dtype=a.dtype, device=a.device)
        cast_kernel[(triton.cdiv(M * N, 512),)](buf, out, M * N, BLOCK=512)
        return out
