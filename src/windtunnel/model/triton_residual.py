"""GPU kernels behind `residual`: one pass over the residual stream each way, deterministic."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .fused import EPSILON
from .triton_rows import place, read

# Rows a program walks through; the sums for the two scalars are kept in registers meanwhile.
ROWS = 8


@triton.jit
def _forward(
    x, delta, first, scale, mix, out, y, factor, amax, N, C,
    DELTA: tl.constexpr, MIX: tl.constexpr, OUT: tl.constexpr, AMAX: tl.constexpr, EPS: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)
    if MIX:
        scaling = tl.load(scale)
        mixing = tl.load(mix)
    largest = 0.0
    for i in range(ROWS):
        row, at, keep = place(i, N, C, column, ROWS)
        value = read(x, at, keep)
        if DELTA:
            value += read(delta, at, keep)
        if MIX:
            value = scaling * value + mixing * read(first, at, keep)
        value = value.to(y.dtype.element_ty)
        if OUT:
            tl.store(out + at, value, mask=keep)
        value = value.to(tl.float32)
        f = tl.rsqrt(tl.sum(value * value, 0) / C + EPS)
        tl.store(factor + row, f, mask=row < N)
        normed = (value * f).to(y.dtype.element_ty)
        tl.store(y + at, normed, mask=keep)
        if AMAX:
            largest = tl.maximum(largest, tl.max(tl.abs(normed.to(tl.float32)), 0))
    if AMAX:
        tl.atomic_max(amax, largest, sem="relaxed")


@triton.jit
def _backward(
    dy, y, factor, dout, first, dfirst, scale, mix, dx, dfirst_out, partial, amax, N, C,
    DOUT: tl.constexpr, DFIRST: tl.constexpr, MIX: tl.constexpr, AMAX: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)
    if MIX:
        scaling = tl.load(scale)
        mixing = tl.load(mix)
        sum_scale = tl.zeros([BLOCK], dtype=tl.float32)
        sum_mix = tl.zeros([BLOCK], dtype=tl.float32)
    largest = 0.0
    for i in range(ROWS):
        row, at, keep = place(i, N, C, column, ROWS)
        up = read(dy, at, keep)
        normed = read(y, at, keep)
        f = tl.load(factor + row, mask=row < N, other=1.0)
        grad = (up - normed * (tl.sum(normed * up, 0) / C)) * f
        if DOUT:
            grad += read(dout, at, keep)
        if MIX:
            other = read(first, at, keep)
            # What was scaled, from what was saved anyway: x = scale * s + mix * first.
            sum_scale += grad * (normed / f - mixing * other)
            sum_mix += grad * other
            through = mixing * grad
            if DFIRST:
                through += read(dfirst, at, keep)
            tl.store(dfirst_out + at, through.to(dx.dtype.element_ty), mask=keep)
            grad = scaling * grad
        rounded = grad.to(dx.dtype.element_ty)
        tl.store(dx + at, rounded, mask=keep)
        if AMAX:
            largest = tl.maximum(largest, tl.max(tl.abs(rounded.to(tl.float32)), 0))
    if MIX:
        tl.store(partial + tl.program_id(0) * 2, tl.sum(sum_scale, 0) / scaling)
        tl.store(partial + tl.program_id(0) * 2 + 1, tl.sum(sum_mix, 0))
    if AMAX:
        tl.atomic_max(amax, largest, sem="relaxed")


def _launch(C: int) -> dict[str, int]:
    block = triton.next_power_of_2(C)
    return {"BLOCK": block, "ROWS": ROWS, "num_warps": min(16, max(1, block // 512))}


def residual_forward(
    x: Tensor, delta: Tensor | None, first: Tensor | None, scale: Tensor | None, mix: Tensor | None,
    want_out: bool, want_amax: bool,
) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return out = scale * (x + delta) + mix * first and y = norm(out) of x (N, C) contiguous.

    Returns:
        out or None, y, factor (N,) fp32, amax of y (1,) fp32 if wanted.
    """
    N, C = x.shape
    out, y = torch.empty_like(x) if want_out else None, torch.empty_like(x)
    factor = torch.empty(N, dtype=torch.float32, device=x.device)
    amax = torch.zeros(1, dtype=torch.float32, device=x.device) if want_amax else factor
    _forward[(triton.cdiv(N, ROWS),)](
        x, x if delta is None else delta, x if first is None else first, factor if scale is None else scale,
        factor if mix is None else mix, y if out is None else out, y, factor, amax, N, C,
        DELTA=delta is not None, MIX=first is not None, OUT=want_out, AMAX=want_amax, EPS=EPSILON, **_launch(C),
    )  # fmt: skip
    return out, y, factor, amax


def residual_backward(
    dy: Tensor, y: Tensor, factor: Tensor, dout: Tensor | None, first: Tensor | None, dfirst: Tensor | None,
    scale: Tensor | None, mix: Tensor | None, want_amax: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:  # fmt: skip
    """Return (gradient of x and delta, of first with dfirst added, sums (2,) for scale and mix, amax (1,) of the first)."""
    N, C = y.shape
    dx = torch.empty_like(y)
    mixing = first is not None
    dfirst_out = torch.empty_like(y) if mixing else None
    programs = triton.cdiv(N, ROWS)
    partial = torch.empty(programs, 2, dtype=torch.float32, device=y.device) if mixing else None
    amax = torch.zeros(1, dtype=torch.float32, device=y.device) if want_amax else factor
    _backward[(programs,)](
        dy, y, factor, y if dout is None else dout, y if first is None else first, y if dfirst is None else dfirst,
        factor if scale is None else scale, factor if mix is None else mix, dx, dx if dfirst_out is None else dfirst_out,
        factor if partial is None else partial, amax, N, C,
        DOUT=dout is not None, DFIRST=dfirst is not None, MIX=mixing, AMAX=want_amax, **_launch(C),
    )  # fmt: skip
    return dx, dfirst_out, None if partial is None else partial.sum(0), amax
