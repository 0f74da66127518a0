"""GPU kernels of a swiglu MLP in fp8: its product and its gradients go from the matrix products' bf16 to fp8 in one read.

`both` (N, 2H) holds the values, and beside them the gates. A product is quantised by its own largest magnitude, which a pass
of its own finds before; gradients by a bound of theirs: e5m2 has octaves to spare, and a pass over them is saved.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .triton_fp8 import FP8_MAX

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
# The fastest of a dozen on an H200, at 16,384 tokens and 3,072 hidden channels.
BLOCK, ROWS = 1024, 8
FORWARD_BLOCK = 4096
TILE_ROWS, TILE_COLUMNS, WARPS = 64, 128, 8


@triton.jit
def _parts(both, row, column, keep, H):
    at = row * 2 * H + column
    value = tl.load(both + at, mask=keep, other=0.0).to(tl.float32)
    gate = tl.load(both + at + H, mask=keep, other=0.0).to(tl.float32)
    return value, gate, tl.sigmoid(gate)


@triton.jit
def _find(both, largest, N, H, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    product = tl.zeros([BLOCK], dtype=tl.float32)
    slope = tl.zeros([BLOCK], dtype=tl.float32)
    for i in range(ROWS):
        row = tl.program_id(0).to(tl.int64) * ROWS + i
        value, gate, s = _parts(both, row, column, (column < H) & (row < N), H)
        product = tl.maximum(product, tl.abs(value * (gate * s)))
        # What the gradient from above is multiplied with, for either half; silu's slope is 1.1 at most.
        slope = tl.maximum(slope, tl.maximum(tl.abs(gate * s), 1.1 * tl.abs(value)))
    tl.atomic_max(largest, tl.max(product, 0), sem="relaxed")
    tl.atomic_max(largest + 1, tl.max(slope, 0), sem="relaxed")


@triton.jit
def _limit(largest):
    return tl.maximum(tl.load(largest, volatile=True), 1e-30)


@triton.jit
def _fp8(value, factor, LIMIT: tl.constexpr, like):
    return tl.clamp(value * factor, -LIMIT, LIMIT, propagate_nan=tl.PropagateNan.ALL).to(like.dtype.element_ty)


@triton.jit
def _forward(both, largest, rows, inverse, N, H, LIMIT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = column < H
    value, gate, s = _parts(both, row, column, keep, H)
    most = _limit(largest)
    tl.store(rows + row * H + column, _fp8(value * (gate * s), LIMIT / most, LIMIT, rows), mask=keep)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(inverse, most / LIMIT)


@triton.jit
def _backward(
    grad, amax, both, largest, rows, columns, product, inverse, N, H,
    GRADIENT: tl.constexpr, PRODUCT: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0).to(tl.int64) * TILE_ROWS + tl.arange(0, TILE_ROWS))[:, None]
    column = (tl.program_id(1).to(tl.int64) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS))[None, :]
    keep = (row < N) & (column < H)
    up = tl.load(grad + row * H + column, mask=keep, other=0.0).to(tl.float32)
    value, gate, s = _parts(both, row, column, keep, H)
    silu = gate * s
    tl.store(product + column * N + row, _fp8(value * silu, PRODUCT / _limit(largest), PRODUCT, product), mask=keep)
    dvalue = up * silu
    dgate = up * value * (s * (1 + gate * (1 - s)))
    factor = GRADIENT / (_limit(amax) * _limit(largest + 1))
    tl.store(rows + row * 2 * H + column, _fp8(dvalue, factor, GRADIENT, rows), mask=keep)
    tl.store(rows + row * 2 * H + H + column, _fp8(dgate, factor, GRADIENT, rows), mask=keep)
    # A factor the compiler cannot know to be the same: see `triton_fp8._quantise`.
    again = GRADIENT / (_limit(amax) * _limit(largest + 1))
    tl.store(columns + column * N + row, _fp8(dvalue, again, GRADIENT, columns), mask=keep)
    tl.store(columns + (column + H) * N + row, _fp8(dgate, again, GRADIENT, columns), mask=keep)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(inverse, _limit(amax) * _limit(largest + 1) / GRADIENT)


def swiglu_largest(both: Tensor) -> Tensor:
    """Return (2,) fp32: the largest magnitude of the product, and of what a gradient is multiplied with at most."""
    N, H = both.size(0), both.size(1) // 2
    largest = torch.zeros(2, dtype=torch.float32, device=both.device)
    _find[(triton.cdiv(N, ROWS), triton.cdiv(H, BLOCK))](both, largest, N, H, BLOCK=BLOCK, ROWS=ROWS, num_warps=4)
    return largest


def quantise_swiglu(both: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    """Return silu(second half) * first half in e4m3 (N, H), and its factor ()."""
    N, H = both.size(0), both.size(1) // 2
    rows = torch.empty(N, H, dtype=E4M3, device=both.device)
    inverse = torch.empty((), dtype=torch.float32, device=both.device)
    block = min(FORWARD_BLOCK, triton.next_power_of_2(H))
    grid = (N, triton.cdiv(H, block))
    _forward[grid](both, largest, rows, inverse, N, H, LIMIT=FP8_MAX[E4M3], BLOCK=block, num_warps=4)
    return rows, inverse


def quantise_swiglu_backward(grad: Tensor, amax: Tensor, both: Tensor, largest: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Quantise the gradient of `both`, and the product.

    Returns: the gradient in e5m2 as (N, 2H) and as (2H, N), its factor (), and the product in e4m3 (H, N).

    Args:
        grad: of the product, (N, H).
        both: gates and values side by side, (N, 2H).
        amax: the largest magnitude of `grad`.
        largest: of `swiglu_largest`. The product's factor is that of `quantise_swiglu`.
    """
    N, H = grad.shape
    rows = torch.empty(N, 2 * H, dtype=E5M2, device=grad.device)
    columns = torch.empty(2 * H, N, dtype=E5M2, device=grad.device)
    product = torch.empty(H, N, dtype=E4M3, device=grad.device)
    inverse = torch.empty((), dtype=torch.float32, device=grad.device)
    _backward[(triton.cdiv(N, TILE_ROWS), triton.cdiv(H, TILE_COLUMNS))](
        grad, amax, both, largest, rows, columns, product, inverse, N, H,
        GRADIENT=FP8_MAX[E5M2], PRODUCT=FP8_MAX[E4M3], TILE_ROWS=TILE_ROWS, TILE_COLUMNS=TILE_COLUMNS, num_warps=WARPS,
    )  # fmt: skip
    return rows, columns, inverse, product
