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
def _largest(amax, amax_hidden, MODE: tl.constexpr):
    largest = tl.load(amax, volatile=True)
    if MODE == 1:
        largest = largest * largest
    if MODE == 2:
        largest = largest * 2 * tl.load(amax_hidden, volatile=True)
    return tl.maximum(largest, 1e-30)


@triton.jit
def _quantise(
    x, hidden, amax, amax_hidden, rows, columns, activated, inverse, M, N,
    LIMIT: tl.constexpr, MODE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    # MODE 0: x, in both orders.
    # MODE 1: relu(x)^2, row by row only; amax is the largest of relu(x).
    # MODE 2: x * 2 relu(hidden) in both orders, scaled by a bound of its magnitude, and relu(hidden)^2 in e4m3 transposed.
    largest = _largest(amax, amax_hidden, MODE)
    row = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1).to(tl.int64) * TILE + tl.arange(0, TILE)
    at = row[:, None] * N + column[None, :]
    flipped = column[None, :] * M + row[:, None]
    keep = (row < M)[:, None] & (column < N)[None, :]
    value = tl.load(x + at, mask=keep, other=0.0).to(tl.float32)
    if MODE == 1:
        value = tl.maximum(value, 0.0)
        value = value * value
    if MODE == 2:
        relu = tl.maximum(tl.load(hidden + at, mask=keep, other=0.0).to(tl.float32), 0.0)
        value = value * 2 * relu
        again = relu * relu * (448.0 / _largest(amax_hidden, amax_hidden, 1))
        again = tl.clamp(again, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
        tl.store(activated + flipped, again.to(tl.float8e4nv), mask=keep)
    quantised = tl.clamp(value * (LIMIT / largest), -LIMIT, LIMIT, propagate_nan=tl.PropagateNan.ALL).to(rows.dtype.element_ty)
    tl.store(rows + at, quantised, mask=keep)
    if MODE != 1:
        # The same again from a factor the compiler cannot know to be the same: ptxas (12.8) reads stale registers
        # where one conversion to fp8 is used both four bytes at a time, above, and byte by byte, as in transposing.
        factor = LIMIT / _largest(amax, amax_hidden, MODE)
        apart = tl.clamp(value * factor, -LIMIT, LIMIT, propagate_nan=tl.PropagateNan.ALL).to(columns.dtype.element_ty)
        tl.store(columns + flipped, apart, mask=keep)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(inverse, largest / LIMIT)


def find_amax(x: Tensor, signed: bool = False) -> Tensor:
    """Return the largest magnitude, or with `signed` largest value or 0, of a contiguous tensor: (1,) fp32."""
    out = torch.zeros(1, dtype=torch.float32, device=x.device)
    _amax[(triton.cdiv(x.numel(), AMAX_BLOCK),)](x, out, x.numel(), SIGNED=signed, BLOCK=AMAX_BLOCK, num_warps=8)
    return out


def _launch(
    x: Tensor, amax: Tensor, dtype: torch.dtype, mode: int, hidden: Tensor | None = None, amax_hidden: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    M, N = x.shape
    rows = torch.empty(M, N, dtype=dtype, device=x.device)
    columns = rows if mode == 1 else torch.empty(N, M, dtype=dtype, device=x.device)
    activated = columns if mode != 2 else torch.empty(N, M, dtype=torch.float8_e4m3fn, device=x.device)
    inverse = torch.empty((), dtype=torch.float32, device=x.device)
    _quantise[(triton.cdiv(M, TILE), triton.cdiv(N, TILE))](
        x, x if hidden is None else hidden, amax, amax if amax_hidden is None else amax_hidden,
        rows, columns, activated, inverse, M, N, LIMIT=FP8_MAX[dtype], MODE=mode, TILE=TILE, num_warps=8,
    )  # fmt: skip
    return rows, columns, activated, inverse


def quantise_both(x: Tensor, amax: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Quantise x (M, N), contiguous, to fp8 (M, N), its transpose (N, M), and the factor () that undoes the scaling."""
    rows, columns, _, inverse = _launch(x, amax, dtype, 0)
    return rows, columns, inverse


def quantise_relu_squared(hidden: Tensor, amax: Tensor) -> tuple[Tensor, Tensor]:
    """Return relu(hidden)^2 in e4m3 (M, N), and its factor (); amax: the largest of relu(hidden)."""
    rows, _, _, inverse = _launch(hidden, amax, torch.float8_e4m3fn, 1)
    return rows, inverse


def quantise_relu_squared_backward(
    grad: Tensor, amax: Tensor, hidden: Tensor, amax_hidden: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Turn the gradient of y = relu(hidden)^2 into that of hidden in e5m2, both orders, its factor; and y transposed in e4m3.

    y's factor is that of `quantise_relu_squared`. The gradient is scaled by a bound, amax times the largest
    slope, rather than by its own largest magnitude: e5m2 has octaves to spare, and a pass over it is saved.
    """
    rows, columns, activated, inverse = _launch(grad, amax, torch.float8_e5m2, 2, hidden, amax_hidden)
    return rows, columns, inverse, activated
