"""What lies between the matrix products of a Llama-like block, for one new token a row: a launch each instead of a dozen.

A step of a small model is bound by the number of its launches, recorded or not: a norm is eight of transformers' kernels, the
rotation of queries and keys ten, and writing them to the cache two more. Each result is rounded to the dtype of the weights
where transformers rounds it, so that a token's probabilities are those of transformers' own pass up to the order of sums.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _add_norm(x, delta, weight, out, width, EPS: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = at < width
    value = tl.load(x + row * width + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(delta + row * width + at, mask=inside, other=0.0).to(tl.float32)
        value = value.to(x.dtype.element_ty).to(tl.float32)
        tl.store(x + row * width + at, value.to(x.dtype.element_ty), mask=inside)
    normed = value * tl.rsqrt(tl.sum(value * value, 0) / width + EPS)
    gain = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(
        out + row * width + at, (normed.to(out.dtype.element_ty).to(tl.float32) * gain).to(out.dtype.element_ty), mask=inside
    )


@triton.jit
def _place(  # type: ignore[no-untyped-def]
    qkv, cos, sin, gain_q, gain_k, column, q, keys, values, heads, key_heads, columns, dim,
    EPS: tl.constexpr, NORMED: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, half = tl.arange(0, HALF), dim // 2
    inside = at < half
    kind = q.dtype.element_ty
    source = qkv + (row * (heads + 2 * key_heads) + head) * dim + at
    a = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(source + half, mask=inside, other=0.0).to(tl.float32)
    if head < heads + key_heads:
        if NORMED:
            factor = tl.rsqrt((tl.sum(a * a, 0) + tl.sum(b * b, 0)) / dim + EPS)
            gain = gain_q if head < heads else gain_k
            a = (a * factor).to(kind).to(tl.float32) * tl.load(gain + at, mask=inside, other=0.0).to(tl.float32)
            b = (b * factor).to(kind).to(tl.float32) * tl.load(gain + half + at, mask=inside, other=0.0).to(tl.float32)
            a, b = a.to(kind).to(tl.float32), b.to(kind).to(tl.float32)
        angle = row * dim + at
        # Both halves have the same angles. Products are rounded before they are added, as where each is a kernel of its own.
        c = tl.load(cos + angle, mask=inside, other=0.0).to(tl.float32)
        s = tl.load(sin + angle, mask=inside, other=0.0).to(tl.float32)
        x = (a * c).to(kind).to(tl.float32) - (b * s).to(kind).to(tl.float32)
        y = (b * c).to(kind).to(tl.float32) + (a * s).to(kind).to(tl.float32)
    else:
        x, y = a, b
    newest = tl.load(column)
    if head < heads:
        to = q + (row * heads + head) * dim + at
    elif head < heads + key_heads:
        to = keys + ((row * key_heads + head - heads) * columns + newest) * dim + at
    else:
        to = values + ((row * key_heads + head - heads - key_heads) * columns + newest) * dim + at
    tl.store(to, x.to(kind), mask=inside)
    tl.store(to + half, y.to(kind), mask=inside)


def add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """Add delta to x in place, if there is one; return the root-mean-square norm of the sum, times weight (arXiv:1910.07467).

    Args:
        x: (rows, width), contiguous.
        delta: the same.
        weight: (width,).
        eps: added to the mean square.

    Returns:
        (rows, width).
    """
    out, (rows, width) = torch.empty_like(x), x.shape
    _add_norm[(rows,)](
        x, x if delta is None else delta, weight, out, width, EPS=eps, ADD=delta is not None, BLOCK=triton.next_power_of_2(width)
    )
    return out


def place_heads(
    qkv: Tensor, angles: tuple[Tensor, Tensor], column: Tensor, keys: Tensor, values: Tensor, heads: int,
    gains: tuple[Tensor, Tensor, float] | None = None,
) -> Tensor:  # fmt: skip
    """Rotate queries and keys by their positions (arXiv:2104.09864), and write keys and values to a column of the cache.

    Args:
        qkv: (rows, (heads + 2 key heads) dim), contiguous: queries, then keys, then values.
        angles: cosines and sines, each (rows, dim), whose halves are alike.
        column: (1,) int64, where to write.
        keys: (rows, key heads, columns, dim), contiguous.
        values: the same.
        heads: of queries.
        gains: weights (dim,) of the norms of queries and of keys before they are rotated, and what they add to the mean square;
            None: there are no norms.

    Returns:
        Queries (rows, heads, 1, dim).
    """
    rows, key_heads, columns, dim = keys.shape
    q = qkv.new_empty(rows, heads, 1, dim)
    gain_q, gain_k, eps = gains if gains is not None else (qkv, qkv, 0.0)
    _place[rows, heads + 2 * key_heads](
        qkv, *angles, gain_q, gain_k, column, q, keys, values, heads, key_heads, columns, dim,
        EPS=eps, NORMED=gains is not None, HALF=triton.next_power_of_2(dim // 2),
    )  # fmt: skip
    return q
