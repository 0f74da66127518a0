"""GPU kernel behind `muon.orthogonalise`: products that are symmetric, of which only half is computed."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE, DEPTH = 128, 64


@triton.jit
def _symmetric(
    a, out, M, K, a_batch, a_row, a_column, alpha, beta, gamma, POLYNOMIAL: tl.constexpr, TILE: tl.constexpr, DEPTH: tl.constexpr
):  # fmt: skip
    # Programs count the tiles of the lower triangle row by row: tile p is in row i where i (i + 1) / 2 <= p. The root in fp32
    # may be off by one either way for many tiles, hence the two corrections.
    p = tl.program_id(0)
    i = ((tl.sqrt(8.0 * p + 1.0) - 1.0) * 0.5).to(tl.int32)
    i = tl.where(i * (i + 1) // 2 > p, i - 1, i)
    i = tl.where((i + 1) * (i + 2) // 2 <= p, i + 1, i)
    j = p - i * (i + 1) // 2
    batch = tl.program_id(1).to(tl.int64)
    a += batch * a_batch
    out += batch * M * M
    row = i * TILE + tl.arange(0, TILE)
    column = j * TILE + tl.arange(0, TILE)
    k = tl.arange(0, DEPTH)
    left = a + row[:, None] * a_row + k[None, :] * a_column
    right = a + column[None, :] * a_row + k[:, None] * a_column
    total = tl.zeros([TILE, TILE], dtype=tl.float32)
    for at in range(0, K, DEPTH):
        x = tl.load(left, mask=(row < M)[:, None] & (at + k < K)[None, :], other=0.0)
        y = tl.load(right, mask=(column < M)[None, :] & (at + k < K)[:, None], other=0.0)
        total = tl.dot(x, y, total)
        left += DEPTH * a_column
        right += DEPTH * a_column
    keep = (row < M)[:, None] & (column < M)[None, :]
    if POLYNOMIAL:
        own = tl.load(a + row[:, None] * a_row + column[None, :] * a_column, mask=keep, other=0.0).to(tl.float32)
        total = alpha * total + beta * own + tl.where(row[:, None] == column[None, :], gamma, 0.0)
    result = total.to(out.dtype.element_ty)
    tl.store(out + row[:, None] * M + column[None, :], result, mask=keep)
    if i != j:
        tl.store(out + column[:, None] * M + row[None, :], tl.trans(result), mask=(column < M)[:, None] & (row < M)[None, :])


def _launch(a: Tensor, strides: tuple[int, int], M: int, K: int, polynomial: tuple[float, float, float] | None) -> Tensor:
    out = torch.empty(a.size(0), M, M, dtype=a.dtype, device=a.device)
    tiles = triton.cdiv(M, TILE)
    alpha, beta, gamma = polynomial or (1.0, 0.0, 0.0)
    _symmetric[(tiles * (tiles + 1) // 2, a.size(0))](
        a, out, M, K, a.stride(0), *strides, alpha, beta, gamma,
        POLYNOMIAL=polynomial is not None, TILE=TILE, DEPTH=DEPTH, num_warps=8, num_stages=4,
    )  # fmt: skip
    return out


def gram(x_KRC: Tensor, tall: bool) -> Tensor:
    """Return x x^T (K, R, R), or x^T x (K, C, C) if `tall`."""
    _, R, C = x_KRC.shape
    strides = (x_KRC.stride(2), x_KRC.stride(1)) if tall else (x_KRC.stride(1), x_KRC.stride(2))
    return _launch(x_KRC, strides, *((C, R) if tall else (R, C)), None)


def polynomial(gram_KMM: Tensor, a: float, b: float, c: float) -> Tensor:
    """Return a I + b G + c G G of symmetric matrices G (K, M, M)."""
    M = gram_KMM.size(1)
    return _launch(gram_KMM, (gram_KMM.stride(1), gram_KMM.stride(2)), M, M, (c, b, a))
