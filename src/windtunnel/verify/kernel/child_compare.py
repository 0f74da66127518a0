"""`compare` for outputs too large for numpy: the same rules in torch, on the device. Runs in trusted children only."""

from __future__ import annotations

import torch

from windtunnel.verify.kernel.child_tensors import dtype_name
from windtunnel.verify.kernel.compare import EPSILON, FLOOR, OWN_ERROR, OWN_ERROR_AT_MOST, RELATIVE, Difference


def values_differ(
    given: torch.Tensor, own: torch.Tensor, exact: torch.Tensor, name: str, tolerance: dict[str, float], mismatched: float
) -> Difference | None:
    """Why the values of one output are not right, or None. Shapes and dtypes agree already."""
    if not own.is_floating_point():
        off = given != own
        share = float(off.double().mean()) if off.numel() else 0.0
        near = bool(((given.long() - own.long()).abs() <= 1).all())
        if share == 0 or (mismatched and share <= mismatched and near):
            return None
        return Difference("wrong-values", f"{name} differs from the reference in {share:.1%} of its elements.")
    got, right, mine = given.double(), exact, own.double()
    finite = right.isfinite() & mine.isfinite()
    special = ~right.isfinite() & ((right == mine) | (right.isnan() & mine.isnan()))
    same = (got == right) | (got.isnan() & right.isnan())
    if bool((special & ~same).any()):
        return Difference("wrong-values", f"{name} is wrong where the reference is infinite or not a number.")
    if bool((finite & ~got.isfinite()).any()):
        return Difference("non-finite", f"{name} is not finite where the reference is; unwritten or overflowed.")
    zero = torch.zeros_like(right)
    error = torch.where(finite, (got - right).abs(), zero)
    wrong = finite & (error > _allowed(right, mine, finite, dtype_name(own), tolerance))
    share = float(wrong.double().mean()) if wrong.numel() else 0.0
    if share == 0:
        return None
    worst = float(torch.where(wrong, error, zero).max())
    return Difference("wrong-values", f"{name} differs from the reference in {share:.2%} of its elements, by up to {worst:.3g}.")


def _allowed(
    right: torch.Tensor, mine: torch.Tensor, finite: torch.Tensor, dtype: str, tolerance: dict[str, float]
) -> torch.Tensor:
    zero = torch.zeros_like(right)
    size = torch.where(finite, right.abs(), zero)
    scale = float(size.sum() / finite.sum().clamp(min=1))
    relative = tolerance.get(dtype, RELATIVE[dtype])
    own_error = float(torch.where(finite, (mine - right).abs(), zero).max()) if right.numel() else 0.0
    slack = min(OWN_ERROR[dtype] * own_error, OWN_ERROR_AT_MOST[dtype] * relative * scale)
    return relative * (size + scale) + 2 * EPSILON[dtype] * size + slack + FLOOR[dtype]
