"""Kernels of experts whose weights are e4m3 codes with a scale for each block.

`decode_blocks` writes weights in bf16, in one pass: PyTorch's own operators read and write them three times over, which took
0.22 ms for an expert of DeepSeek-V3 on an H200, where the bytes alone take 0.03. `multiply_few` multiplies by them without
writing them anywhere: where an expert has few rows, as in decoding, the bytes of its codes are all the work there is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 128
"""Rows and columns of the output that one program of `decode_blocks` writes."""
FEWEST, MOST = 16, 64
"""Rows of an expert that one program of `multiply_few` takes together: a product has 16 at least."""
OUTPUTS, INPUTS = 64, 128
"""Outputs that such a program computes, and inputs that it takes at once."""


def decodes_here(codes: Tensor) -> bool:
    """Return whether the kernel runs where the codes lie: Triton reads e4m3 from compute capability 8.9 on."""
    return codes.is_cuda and torch.cuda.get_device_capability(codes.device) >= (8, 9)


@triton.jit
def _decode(codes, scale, out, rows, columns, grid_rows, grid_columns, block_rows, block_columns, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    matrix = tl.program_id(2).to(tl.int64)
    row = tl.program_id(1) * TILE + tl.arange(0, TILE)[:, None]
    column = tl.program_id(0) * TILE + tl.arange(0, TILE)[None, :]
    inside = (row < rows) & (column < columns)
    at = matrix * rows * columns + row.to(tl.int64) * columns + column
    code = tl.load(codes + at, mask=inside, other=0).to(tl.float8e4nv, bitcast=True).to(tl.float32)
    of = matrix * grid_rows * grid_columns + (row // block_rows) * grid_columns + column // block_columns
    factor = tl.load(scale + of, mask=inside, other=0.0)
    tl.store(out + at, (code * factor).to(tl.bfloat16), mask=inside)


def decode_blocks(codes: Tensor, scale: Tensor, block: tuple[int, int]) -> Tensor:
    """Return codes times scales, each product in fp32 and rounded to bf16 once.

    Args:
        codes: (..., O, I) e4m3, contiguous.
        scale: (..., block rows, block columns) fp32, contiguous; the last blocks are cut off by the matrix's edge.
        block: rows and columns that share a scale.

    Returns:
        (..., O, I) bf16.
    """
    rows, columns = codes.shape[-2:]
    out = torch.empty_like(codes, dtype=torch.bfloat16)
    matrices = codes.numel() // max(1, rows * columns)
    if out.numel():
        grid = (triton.cdiv(columns, TILE), triton.cdiv(rows, TILE), matrices)
        _decode[grid](codes.view(torch.uint8), scale, out, rows, columns, *scale.shape[-2:], *block, TILE=TILE)
    return out


def multiplies_few(codes: Tensor, block: tuple[int, int], counts: Sequence[int]) -> bool:
    """Return whether `multiply_few` is the way to go: experts have few rows, and a tile's weights share one scale.

    Beyond `MOST` rows an expert's codes would be decoded several times over.
    """
    rows, columns = codes.shape[-2:]
    tiles = rows % OUTPUTS == 0 and columns % INPUTS == 0 and block[0] % OUTPUTS == 0 and block[1] % INPUTS == 0
    return tiles and max(counts, default=0) <= MOST and decodes_here(codes)


@triton.jit
def _multiply(  # type: ignore[no-untyped-def]
    rows, codes, scale, out, work, outputs, inputs, parts, grid_rows, grid_columns, block_rows, block_columns,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip
    expert = tl.load(work + tl.program_id(1) * 3).to(tl.int64)
    first = tl.load(work + tl.program_id(1) * 3 + 1)
    end = tl.load(work + tl.program_id(1) * 3 + 2)
    begin = tl.program_id(0) * OUTPUTS  # no tile has outputs of two matrices
    matrix = expert * parts + begin // outputs
    output = begin % outputs + tl.arange(0, OUTPUTS)
    row, column = first + tl.arange(0, ROWS), tl.arange(0, INPUTS)
    weights = codes + matrix * outputs * inputs + output.to(tl.int64)[:, None] * inputs + column[None, :]
    given = rows + row.to(tl.int64)[None, :] * inputs + column[:, None]
    factors = scale + (matrix * grid_rows + (begin % outputs) // block_rows) * grid_columns
    total = tl.zeros((OUTPUTS, ROWS), tl.float32)
    for at in range(0, inputs, INPUTS):
        code = tl.load(weights + at).to(tl.float8e4nv, bitcast=True).to(tl.float32)
        weight = (code * tl.load(factors + at // block_columns)).to(tl.bfloat16)
        x = tl.load(given + at, mask=(row < end)[None, :], other=0.0)
        total = tl.dot(weight.to(x.dtype), x, total)
    place = out + row.to(tl.int64)[None, :] * (parts * outputs) + begin + tl.arange(0, OUTPUTS)[:, None]
    tl.store(place, total.to(out.dtype.element_ty), mask=(row < end)[None, :])


def multiply_few(rows: Tensor, codes: Tensor, scale: Tensor, block: tuple[int, int], counts: Sequence[int], out: Tensor) -> None:
    """Multiply rows, sorted by expert, each by its expert's weights transposed, as `decode_blocks` would make them.

    A row's result does not depend on what other rows there are, up to which of the sizes of a tile they ask for.

    Args:
        rows: (S, I) bf16, contiguous.
        codes: (E, P, O, I) e4m3, contiguous.
        scale: (E, P, block rows, block columns) fp32, contiguous.
        block: rows and columns that share a scale; see `multiplies_few`.
        counts: rows of each expert.
        out: (S, P * O) bf16, contiguous, written.
    """
    together = min(MOST, max(FEWEST, triton.next_power_of_2(max(counts, default=1))))
    work, start = [], 0
    for expert, count in enumerate(counts):
        work += [(expert, at, min(at + together, start + count)) for at in range(start, start + count, together)]
        start += count
    if not work:
        return
    _, parts, outputs, inputs = codes.shape
    grid = (parts * outputs // OUTPUTS, len(work))
    _multiply[grid](
        rows, codes.view(torch.uint8), scale, out, torch.tensor(work, dtype=torch.int32, device=rows.device),
        outputs, inputs, parts, *scale.shape[-2:], *block, ROWS=together, OUTPUTS=OUTPUTS, INPUTS=INPUTS,
    )  # fmt: skip
