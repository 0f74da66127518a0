"""GPU kernels behind `tables`: rows read into the compute dtype, and gradient rows summed per token in order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _add_rows(table, grad, order, start, C, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    begin = tl.load(start + row)
    end = tl.load(start + row + 1)
    if begin < end:
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = column < C
        total = tl.load(table + row * C + column, mask=inside, other=0.0).to(tl.float32)
        # Common tokens have thousands of addends: several rows are then in flight at a time.
        blocks = (end - begin) // ROWS
        for i in range(blocks):
            position = tl.load(order + begin + i * ROWS + tl.arange(0, ROWS))
            rows = tl.load(grad + position[:, None] * C + column[None, :], mask=inside[None, :], other=0.0)
            total += tl.sum(rows.to(tl.float32), 0)
        for at in range(begin + blocks * ROWS, end):
            position = tl.load(order + at)
            total += tl.load(grad + position * C + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(table + row * C + column, total, mask=inside)


@triton.jit
def _read_rows(table, idx, out, C, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64)
    row = tl.load(idx + at)
    column = tl.arange(0, BLOCK)
    value = tl.load(table + row * C + column, mask=column < C)
    tl.store(out + at * C + column, value.to(out.dtype.element_ty), mask=column < C)


def add_rows_kernel_(table_VC: Tensor, grad_NC: Tensor, order_N: Tensor, start_V: Tensor) -> None:
    """Add rows of grad_NC to table_VC, summed in fp32; `order_N` sorted by token, `start_V` the V + 1 offsets."""
    V, C = table_VC.shape
    block = min(2048, triton.next_power_of_2(C))
    warps = max(1, min(8, block // 256))
    _add_rows[(V, triton.cdiv(C, block))](
        table_VC, grad_NC.contiguous(), order_N, start_V, C, BLOCK=block, ROWS=8, num_warps=warps
    )


def read_rows_kernel(table_VC: Tensor, idx: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the tokens' rows (*idx.shape, C) in `dtype`."""
    C = table_VC.size(1)
    out = torch.empty(*idx.shape, C, dtype=dtype, device=table_VC.device)
    block = triton.next_power_of_2(C)
    _read_rows[(idx.numel(),)](table_VC, idx.contiguous(), out, C, BLOCK=block, num_warps=max(1, min(8, block // 256)))
    return out
