# task: matmul
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mac_loop(a_ptr, b_ptr, c_ptr, M, N, K, tile, k_start, k_end, tiles_n, whole, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = (tile // tiles_n) * BM + tl.arange(0, BM)
    rn = (tile % tiles_n) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for it in range(k_start, k_end):
        rk = it * BK + tl.arange(0, BK)
        a = tl.load(a_ptr + rm[:, None] * K + rk[None, :], mask=(rm < M)[:, None] & (rk < K)[None, :], other=0.0)
        b = tl.load(b_ptr + rk[:, None] * N + rn[None, :], mask=(rk < K)[:, None] & (rn < N)[None, :], other=0.0)
        acc += tl.dot(a, b)
    tl.atomic_add(c_ptr + rm[:, None] * N + rn[None, :], acc, mask=(rm < M)[:, None] & (rn < N)[None, :], sem="relaxed")


@triton.jit
def stream_k(a_ptr, b_ptr, c_ptr, M, N, K, total_iters, iters_per_tile, tiles_n, per_program,
             BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pid = tl.program_id(0)
    start = pid * per_program
    end = tl.minimum(start + per_program, total_iters)
    while start < end:
        tile = start // iters_per_tile
        k_start = start % iters_per_tile
        k_end = tl.minimum(iters_per_tile, k_start + (end - start))
        mac_loop(a_ptr, b_ptr, c_ptr, M, N, K, tile, k_start, k_end, tiles_n, iters_per_tile, BM, BN, BK)
        start += k_end - k_start


@triton.jit
def cast_kernel(src, dst, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dst + at, tl.load(src + at, mask=at < n, other=0.0).to(dst.dtype.element_ty), mask=at < n)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.programs = 5

    def forward(self, a, b):
        M, K = a.shape
        N = b.shape[1]
        BM = BN = BK = 16
        acc = torch.zeros((M, N), device=a.device, dtype=torch.float32)
        tiles_n = triton.cdiv(N, BN)
        iters = triton.cdiv(K, BK)
        total = triton.cdiv(M, BM) * tiles_n * iters
        per = triton.cdiv(total, self.programs)
        stream_k[(self.programs,)](a, b, acc, M, N, K, total, iters, tiles_n, per, BM=BM, BN=BN, BK=BK)
        if a.dtype == torch.float32:
            return acc
        c = torch.empty((M, N), device=a.device, dtype=a.dtype)
        cast_kernel[(triton.cdiv(M * N, 1024),)](acc, c, M * N, BLOCK=1024)
        return c
