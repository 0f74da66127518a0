"""GPU kernels behind `refine`: sums of states and the norm that follows, one pass each way, deterministic."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .fused import EPSILON
from .triton_rows import place, read

# Rows a program walks through.
ROWS = 4


@triton.jit
def _forward(
    s, a, b, x, y, out, y_out, u, factor, N, C,
    A: tl.constexpr, B: tl.constexpr, X: tl.constexpr, Y: tl.constexpr, OUT: tl.constexpr, EPS: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)
    for i in range(ROWS):
        row, at, keep = place(i, N, C, column, ROWS)
        total = read(s, at, keep)
        change = tl.zeros([BLOCK], dtype=tl.float32)
        if A:
            change += read(a, at, keep)
        if B:
            change += read(b, at, keep)
        total += change
        if OUT:
            tl.store(out + at, total.to(u.dtype.element_ty), mask=keep)
        if Y:
            answer = read(y, at, keep) + change
            tl.store(y_out + at, answer.to(u.dtype.element_ty), mask=keep)
        if X:
            total -= read(x, at, keep)
        f = tl.rsqrt(tl.sum(total * total, 0) / C + EPS)
        tl.store(factor + row, f, mask=row < N)
        tl.store(u + at, (total * f).to(u.dtype.element_ty), mask=keep)


@triton.jit
def _backward(
    du, again, u, factor, dout, dy, onward, ds, da, dx, N, C,
    DU: tl.constexpr, AGAIN: tl.constexpr, DOUT: tl.constexpr, DY: tl.constexpr, ONWARD: tl.constexpr, X: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)
    for i in range(ROWS):
        row, at, keep = place(i, N, C, column, ROWS)
        up = tl.zeros([BLOCK], dtype=tl.float32)
        if DU:
            up += read(du, at, keep)
        if AGAIN:
            up += read(again, at, keep)
        normed = read(u, at, keep)
        f = tl.load(factor + row, mask=row < N, other=1.0)
        grad = (up - normed * (tl.sum(normed * up, 0) / C)) * f
        if X:
            through = -grad
            if ONWARD:
                through += read(onward, at, keep)
            tl.store(dx + at, through.to(ds.dtype.element_ty), mask=keep)
        if DOUT:
            grad += read(dout, at, keep)
        tl.store(ds + at, grad.to(ds.dtype.element_ty), mask=keep)
        if DY:
            grad += read(dy, at, keep)
            tl.store(da + at, grad.to(ds.dtype.element_ty), mask=keep)


def _launch(C: int) -> dict[str, int]:
    block = triton.next_power_of_2(C)
    return {"BLOCK": block, "ROWS": ROWS, "num_warps": min(16, max(1, block // 512))}


def refine_forward(
    s: Tensor, a: Tensor | None, b: Tensor | None, x: Tensor | None, y: Tensor | None, keep: bool
) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor]:
    """Return of contiguous (N, C) tensors: s + a + b if `keep`, y + a + b, u = norm(s + a + b - x), and u's factors (N,) fp32."""
    N, C = s.shape
    out, y_out = torch.empty_like(s) if keep else None, None if y is None else torch.empty_like(s)
    u, factor = torch.empty_like(s), torch.empty(N, dtype=torch.float32, device=s.device)
    given = [s if t is None else t for t in (a, b, x, y)]
    made = [u if t is None else t for t in (out, y_out)]
    _forward[(triton.cdiv(N, ROWS),)](
        s, *given, *made, u, factor, N, C,
        A=a is not None, B=b is not None, X=x is not None, Y=y is not None, OUT=keep, EPS=EPSILON, **_launch(C),
    )  # fmt: skip
    return out, y_out, u, factor


def refine_backward(
    du: Tensor | None, again: Tensor | None, u: Tensor, factor: Tensor,
    dout: Tensor | None, dy: Tensor | None, onward: Tensor | None, has_x: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Return the gradients of s, of a and b (the same tensor where y has no gradient), and of x, `onward` added."""
    N, C = u.shape
    ds = torch.empty_like(u)
    da = ds if dy is None else torch.empty_like(u)
    dx = torch.empty_like(u) if has_x else None
    given = [u if t is None else t for t in (du, again)]
    others = [u if t is None else t for t in (dout, dy, onward)]
    _backward[(triton.cdiv(N, ROWS),)](
        *given, u, factor, *others, ds, da, ds if dx is None else dx, N, C,
        DU=du is not None, AGAIN=again is not None, DOUT=dout is not None, DY=dy is not None,
        ONWARD=onward is not None, X=has_x, **_launch(C),
    )  # fmt: skip
    return ds, da, dx
