"""One pass over e4m3 codes that writes them times their block's scale in bf16: half the memory traffic is the result's.

PyTorch's own operators read and write the weights three times over: 0.22 ms for an expert of DeepSeek-V3 on an H200, where
the bytes alone take 0.03.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 128
"""Rows and columns of the output that one program writes."""


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
