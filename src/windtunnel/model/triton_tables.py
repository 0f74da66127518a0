"""GPU kernel behind `tables.add_rows_`: one program sums the gradient rows of one token, in order."""

from __future__ import annotations

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
        total = tl.load(table + row * C + column, mask=inside, other=0.0)
        for at in range(begin, end, ROWS):
            which = at + tl.arange(0, ROWS)
            position = tl.load(order + which, mask=which < end, other=0)
            keep = (which < end)[:, None] & inside[None, :]
            total += tl.sum(tl.load(grad + position[:, None] * C + column[None, :], mask=keep, other=0.0).to(tl.float32), 0)
        tl.store(table + row * C + column, total, mask=inside)


def add_rows_kernel_(table_VC: Tensor, grad_NC: Tensor, order_N: Tensor, start_V: Tensor) -> None:
    """table_VC fp32 += rows of grad_NC; `order_N` sorted by token, `start_V` the V + 1 offsets."""
    V, C = table_VC.shape
    block = min(512, triton.next_power_of_2(C))
    _add_rows[(V, triton.cdiv(C, block))](table_VC, grad_NC.contiguous(), order_N, start_V, C, BLOCK=block, ROWS=4, num_warps=4)
