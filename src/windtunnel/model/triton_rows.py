"""What kernels share that walk through the rows of an (N, C) tensor, ROWS in each program, a row at a time."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def place(i, N, C, column, ROWS: tl.constexpr):
    """Return the i-th row of this program: its number, the offsets of its elements, and which of them exist."""
    row = tl.program_id(0).to(tl.int64) * ROWS + i
    return row, row * C + column, (column < C) & (row < N)


@triton.jit
def read(tensor, at, keep):
    """Elements as fp32; zero where there are none."""
    return tl.load(tensor + at, mask=keep, other=0.0).to(tl.float32)
