"""Attention of each row's newest token over a cache that stays where it is, of which every row uses a span of columns.

PyTorch's attention under a mask reads all columns, and copies keys and values for every head that shares them: of 256 rows of
SmolLM2-135M's shape that took most of a step. Here a program reads one row's span of one head once, for all queries that share
it. Long spans are shared out over several programs, whose results are put together as in Flash-Decoding
(https://pytorch.org/blog/flash-decoding).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 64
"""Columns that a program reads at a time."""
PROGRAMS = 528
"""About as many programs as keep a GPU of 132 multiprocessors busy; fewer rows are split further."""
MOST_SPLITS = 16
LEAST_QUERIES = 16
"""Rows of the smallest matrix product that Triton has."""


@triton.jit
def _spans(  # type: ignore[no-untyped-def]
    query, keys, values, first, newest, out, logs, scale, heads, shared, columns, dim,
    QUERIES: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row, head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    begin, end = tl.load(first + row), tl.load(newest) + 1
    # A whole number of blocks each, so that only the last one of a span is cut.
    each = tl.cdiv(tl.cdiv(end - begin, SPLITS), BLOCK) * BLOCK
    low = begin + split * each
    high = tl.minimum(low + each, end)
    one, at = tl.arange(0, QUERIES), tl.arange(0, DIM)
    of = row * heads + head * shared + one  # (row, head) of each query
    there = (one < shared)[:, None] & (at < dim)[None, :]
    q = tl.load(query + of[:, None] * dim + at[None, :], mask=there, other=0.0)
    cache = (row * (heads // shared) + head) * columns
    most = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mean = tl.zeros([QUERIES, DIM], tl.float32)
    for start in range(low, high, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = (column < high)[:, None] & (at < dim)[None, :]
        place = (cache + column)[:, None] * dim + at[None, :]
        k = tl.load(keys + place, mask=inside, other=0.0)
        score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        score = tl.where((column < high)[None, :], score, float("-inf"))
        larger = tl.maximum(most, tl.max(score, 1))
        weight = tl.exp(score - larger[:, None])
        kept = tl.exp(most - larger)
        v = tl.load(values + place, mask=inside, other=0.0)
        mean = mean * kept[:, None] + tl.dot(weight.to(v.dtype), v, input_precision=PRECISION)
        total = total * kept + tl.sum(weight, 1)
        most = larger
    # A split that has no columns weighs nothing: its log is minus infinity.
    some = tl.where(total > 0, total, 1.0)
    to = of * SPLITS + split
    tl.store(out + to[:, None] * dim + at[None, :], mean / some[:, None], mask=there)
    tl.store(logs + to, tl.where(total > 0, most + tl.log(some), float("-inf")), mask=one < shared)


@triton.jit
def _joined(parts, logs, out, dim, DIM: tl.constexpr, SPLITS: tl.constexpr):  # type: ignore[no-untyped-def]
    of = tl.program_id(0).to(tl.int64)
    split, at = tl.arange(0, SPLITS), tl.arange(0, DIM)
    log = tl.load(logs + of * SPLITS + split)
    weight = tl.exp(log - tl.max(log, 0))
    place = (of * SPLITS + split)[:, None] * dim + at[None, :]
    part = tl.load(parts + place, mask=(at < dim)[None, :], other=0.0)
    mean = tl.sum(part * weight[:, None], 0) / tl.sum(weight, 0)
    tl.store(out + of * dim + at, mean.to(out.dtype.element_ty), mask=at < dim)


def attend_newest(query: Tensor, keys: Tensor, values: Tensor, first: Tensor, newest: Tensor, scale: float) -> Tensor:
    """Return what each row's newest token attends to: softmax(q kᵀ scale) v over the columns from `first` to `newest`.

    Sums are fp32; the weights of values are rounded to the values' dtype. What is launched does not depend on what the tensors
    hold, so that a recording of it serves every step.

    Args:
        query: (rows, heads, 1, dim).
        keys: (rows, key heads, columns, dim), contiguous; heads are a multiple of key heads.
        values: the same.
        first: (rows,) int64, each row's first column, no later than `newest`.
        newest: (1,) int64, the last column of all rows.
        scale: of scores.

    Returns:
        (rows, heads, 1, dim).
    """
    rows, heads, _, dim = query.shape
    key_heads, columns = keys.shape[1:3]
    splits = 1
    while splits < MOST_SPLITS and splits * COLUMNS < columns and rows * key_heads * splits < PROGRAMS:
        splits *= 2
    parts = torch.empty(rows, heads, splits, dim, dtype=torch.float32, device=query.device)
    logs = torch.empty(rows, heads, splits, dtype=torch.float32, device=query.device)
    wide, shared = triton.next_power_of_2(dim), heads // key_heads
    _spans[rows, key_heads, splits](
        query.contiguous(), keys, values, first, newest, parts, logs, scale, heads, shared, columns, dim,
        QUERIES=max(LEAST_QUERIES, triton.next_power_of_2(shared)), DIM=wide, BLOCK=COLUMNS, SPLITS=splits, PRECISION="ieee",
    )  # fmt: skip
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    _joined[(rows * heads,)](parts, logs, out, dim, DIM=wide, SPLITS=splits)
    return out
