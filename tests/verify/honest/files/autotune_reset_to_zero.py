# task: matvec
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.autotune(
    configs=[triton.Config({"BM": 1, "BK": 1024}), triton.Config({"BM": 4, "BK": 512}, num_warps=8)],
    key=["K"],
    reset_to_zero=["y_ptr"],
)
@triton.jit
def matvec_splitk(a_ptr, x_ptr, y_ptr, M, K, SPLIT: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    sp = tl.program_id(1)
    acc = tl.zeros((BM,), tl.float32)
    for k in range(sp * BK, K, SPLIT * BK):
        rk = k + tl.arange(0, BK)
        inside = (rm < M)[:, None] & (rk < K)[None, :]
        a = tl.load(a_ptr + rm[:, None].to(tl.int64) * K + rk[None, :], mask=inside, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + rk, mask=rk < K, other=0.0).to(tl.float32)
        acc += tl.sum(a * x[None, :], axis=1)
    tl.atomic_add(y_ptr + rm, acc, mask=rm < M, sem="relaxed")


@triton.jit
def downcast(src, dst, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(dst + i, tl.load(src + i, mask=i < n, other=0.0), mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, split_k: int = 4):
        super().__init__()
        self.split_k = split_k

    def forward(self, a: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        M, K = a.shape
        acc = torch.zeros(M, device=a.device, dtype=torch.float32)
        grid = lambda meta: (triton.cdiv(M, meta["BM"]), self.split_k)
        matvec_splitk[grid](a, v, acc, M, K, SPLIT=self.split_k)
        if a.dtype == acc.dtype:
            return acc
        out = a.new_empty((M,))
        downcast[(triton.cdiv(M, 256),)](acc, out, M, B=256)
        return out
