"""GPU kernels behind `fp8`: largest magnitudes, and quantisation to fp8 in both orders from one read.

A training step multiplies every quantised matrix twice, once along its rows and once along its
columns, and the hardware wants both row-major: each tile is read once and written twice.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

FP8_MAX = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
TILE = 128
AMAX_BLOCK = 16384


@triton.jit
def _amax(x, out, N, SIGNED: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < N, other=0.0).to(tl.float32)
    if not SIGNED:
        value = tl.abs(value)
    tl.atomic_max(out, tl.maximum(tl.max(value, 0), 0.0), sem="relaxed")


@triton.jit
def _quantise(
    x, hidden, amax, amax_hidden, rows, columns, inverse, M, N,
    LIMIT: tl.constexpr, MODE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    # MODE 0: x. MODE 1: relu(x)^2, amax is the largest of relu(x).
    # MODE 2: x * 2 relu(hidden), scaled by a bound of its magnitude.
    largest = tl.load(amax)
    if MODE == 1:
        largest = largest * largest
    if MODE == 2:
        largest = largest * 2 * tl.load(amax_hidden)
    largest = tl.maximum(largest, 1e-30)
    scale = LIMIT / largest
    row = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1).to(tl.int64) * TILE + tl.arange(0, TILE)
    at = row[:, None] * N + column[None, :]
    keep = (row < M)[:, None] & (column < N)[None, :]
    value = tl.load(x + at, mask=keep, other=0.0).to(tl.float32)
    if MODE == 1:
        value = tl.maximum(value, 0.0)
        value = value * value
    if MODE == 2:
        value = value * 2 * tl.maximum(tl.load(hidden + at, mask=keep, other=0.0).to(tl.float32), 0.0)
    quantised = tl.clamp(value * scale, -LIMIT, LIMIT, propagate_nan=tl.PropagateNan.ALL).to(rows.dtype.element_ty)
    tl.store(rows + at, quantised, mask=keep)
    # Transposed by address: Triton (3.6, 3.7) mixes up the bytes of fp8 tiles in tl.trans.
    tl.store(columns + column[None, :] * M + row[:, None], quantised, mask=keep)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(inverse, largest / LIMIT)


def find_amax(x: Tensor, signed: bool = False) -> Tensor:
    """Largest magnitude, or with `signed` largest value or 0, of a contiguous tensor: (1,) fp32."""
    out = torch.zeros(1, dtype=torch.float32, device=x.device)
    _amax[(triton.cdiv(x.numel(), AMAX_BLOCK),)](x, out, x.numel(), SIGNED=signed, BLOCK=AMAX_BLOCK, num_warps=8)
    return out


def quantise_both(
    x: Tensor, amax: Tensor, dtype: torch.dtype, mode: int, hidden: Tensor | None = None, amax_hidden: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """x (M, N) contiguous -> fp8 (M, N), its transpose (N, M), and the factor () that undoes the scaling; see the kernel."""
    M, N = x.shape
    rows = torch.empty(M, N, dtype=dtype, device=x.device)
    columns = torch.empty(N, M, dtype=dtype, device=x.device)
    inverse = torch.empty((), dtype=torch.float32, device=x.device)
    _quantise[(triton.cdiv(M, TILE), triton.cdiv(N, TILE))](
        x, x if hidden is None else hidden, amax, amax if amax_hidden is None else amax_hidden, rows, columns, inverse, M, N,
        LIMIT=FP8_MAX[dtype], MODE=mode, TILE=TILE, num_warps=8,
    )  # fmt: skip
    return rows, columns, inverse
