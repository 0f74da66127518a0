"""Embedding tables: looked up in the compute dtype, gradients summed in a fixed order straight into `.grad`.

The stock gradient is either a race of atomic additions (not reproducible) or a dense table for each
lookup. Here one sort of the tokens serves every table of the model.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# With few rows each gets thousands of addends; a product with the one-hot matrix is then the fast fixed order.
ONE_HOT_ROWS = 256


class TokenOrder:
    """Where each token of a micro-batch stands.

    Attributes:
        idx_N: tokens, flattened.
        order_N: positions sorted by token, ties in order.
        start_V: rows + 1 offsets into `order_N`, one range a token.
    """

    def __init__(self, idx: Tensor, rows: int) -> None:
        self.idx_N = idx.reshape(-1)
        if rows > ONE_HOT_ROWS:
            # Stable: gradients of a token are added in the order of its positions.
            ordered, self.order_N = torch.sort(self.idx_N, stable=True)
            self.start_V = torch.searchsorted(ordered, torch.arange(rows + 1, device=idx.device))


def add_rows_(table_VC: Tensor, grad_NC: Tensor, tokens: TokenOrder) -> None:
    """Add gradient rows to table[token], for every position, in a fixed order. `table_VC` is fp32, or what it was gathered in."""
    if table_VC.size(0) <= ONE_HOT_ROWS:
        # A product with zeros and ones: its order of sums is fixed, whatever the tokens.
        table_VC += F.one_hot(tokens.idx_N, table_VC.size(0)).to(grad_NC.dtype).T @ grad_NC
    elif grad_NC.is_cuda:
        from .triton_tables import add_rows_kernel_

        add_rows_kernel_(table_VC, grad_NC, tokens.order_N, tokens.start_V)
    else:
        table_VC.index_add_(0, tokens.idx_N, grad_NC.to(table_VC.dtype))


def read_rows(table_VC: Tensor, idx: Tensor, dtype: torch.dtype) -> Tensor:
    """Return rows idx of the table in `dtype`: (*idx.shape, C)."""
    if table_VC.is_cuda:
        from .triton_tables import read_rows_kernel

        return read_rows_kernel(table_VC, idx, dtype)
    return F.embedding(idx, table_VC).to(dtype)


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, idx, dtype, tokens, after):  # type: ignore[no-untyped-def]
        ctx.tokens, ctx.weight = tokens, weight
        return read_rows(weight, idx, dtype)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        weight = ctx.weight
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        add_rows_(weight.grad, grad.reshape(-1, grad.size(-1)), ctx.tokens)
        return None, None, None, None, None


class Table(nn.Module):
    """Vectors looked up by token. Its gradient is added to `weight.grad` during backward, not returned to autograd."""

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, dim))

    def forward(
        self, idx_BT: Tensor, dtype: torch.dtype, tokens: TokenOrder | None = None, after: Tensor | None = None
    ) -> Tensor:
        """Look up tokens (B, T).

        Args:
            idx_BT: the tokens.
            dtype: of what is returned.
            tokens: shared between tables looked up with the same idx.
            after: requires a gradient and gets none; whoever watches it in the backward pass (FSDP2, of what a module is given)
                hears of it when this table's gradient is complete.

        Returns:
            (B, T, C) in `dtype`.
        """
        if not torch.is_grad_enabled():
            return read_rows(self.weight, idx_BT, dtype)
        return _Lookup.apply(self.weight, idx_BT, dtype, tokens or TokenOrder(idx_BT, self.weight.size(0)), after)
