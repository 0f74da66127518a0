"""`compare` for outputs too large for numpy: the same rules in torch, on the device. Imports torch.

Products may be in TF32 here, which no interpreter computes in. What that rounds is relative to the factors, not to their sum, and
is bounded by what it does to the reference: one element may be off by twice its worst error more, the root mean square of all
errors may be half more.

Of an output too large to be copied blocks of its elements at places drawn after it was made are handed over, and every block's
sum. An element that is wrong in a block that was not drawn shows in its block's sum, unless it is small beside what a block may
be off by; such errors are for the tiny sizes to find, where every element is compared.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import torch

from windtunnel.verify.kernel.child.tensors import dtype_name
from windtunnel.verify.kernel.compare import FLAT_SHARE, RELATIVE, Difference, allowed_of, robust_scale

COARSE_WORST = 2.0  # of the reference's worst error in TF32: how factors are grouped is the candidate's choice
COARSE_AT_MOST = 0.05  # of the mean magnitude; beyond it the task is too badly conditioned to ask for more
COARSE_MEAN = 1.5  # of the root mean square of those errors; with bfloat16's 7 bits it is 2.2 to 8 times as large
COARSE_ELEMENTS = 4096  # of fewer, the mean says too little
LARGE_BYTES = 64 << 20
BLOCK = 16_384  # elements
MOST_BLOCKS = 512


@dataclass(frozen=True)
class Leave:
    """What is not demanded with inputs that are too much for the reference itself.

    Attributes:
        special: what it gives where that is no finite number.
        digits: more of them than it has in its own dtype, however few these are.
        errors: of each output, more than this error of the reference's allows.
    """

    special: bool = False
    digits: bool = False
    errors: tuple[float, ...] = ()

    def of(self, number: int) -> Leave:
        """Return what is not demanded of one output."""
        return replace(self, errors=self.errors[number : number + 1])


def values_differ(
    given: torch.Tensor,
    own: torch.Tensor,
    exact: torch.Tensor,
    name: str,
    tolerance: dict[str, float],
    mismatched: float,
    coarse: torch.Tensor | Rounding | None = None,
    leave: Leave | None = None,
) -> Difference | None:
    """Return why the values of one output are not right, or None. Shapes and dtypes agree already.

    Args:
        given: the candidate's output.
        own: the reference's in the same dtype.
        exact: the reference's in float64.
        name: of the output, for the words.
        tolerance: relative error by dtype.
        mismatched: share of whole numbers that may be off by one.
        coarse: what the reference gives in float64 with the factors of its products cut to TF32, where a candidate's may be,
            or by how much that is off.
        leave: what is not demanded, None: nothing.
    """
    leave = leave or Leave()
    if not own.is_floating_point():
        off = (given != own) & (given != exact)  # as in `compare`
        share = float(off.double().mean()) if off.numel() else 0.0
        near = bool(((given.long() - own.long()).abs() <= 1)[off].all())
        if share == 0 or (mismatched and share <= mismatched and near):
            return None
        return Difference("wrong-values", f"{name} differs from the reference in {share:.1%} of its elements.")
    # Before values: one NaN would make every distance NaN, which is more than nothing.
    broken = not_finite(given, own, exact, name, leave)
    if broken is not None:
        return broken
    got, right, mine = given.double(), exact, own.double()
    finite = right.isfinite() & mine.isfinite()
    zero = torch.zeros_like(right)
    error = torch.where(finite, (got - right).abs(), zero)
    nearby = max(leave.errors, default=0.0)
    allowed, scale = _allowed(right, mine, finite, dtype_name(own), tolerance, capped=not leave.digits, nearby=nearby)
    if coarse is not None:
        rounding = coarse if isinstance(coarse, Rounding) else _rounding(coarse, right, finite, scale)
        found = _coarser(error, rounding, scale, RELATIVE[dtype_name(own)], name)
        if found is not None:
            return found
        allowed += min(COARSE_WORST * rounding.worst, COARSE_AT_MOST) * scale
    wrong = finite & (error > allowed)
    share = float(wrong.double().mean()) if wrong.numel() else 0.0
    if share == 0:
        return None
    worst = float(torch.where(wrong, error, zero).max())
    return Difference("wrong-values", f"{name} differs from the reference in {share:.2%} of its elements, by up to {worst:.3g}.")


@dataclass(frozen=True)
class Rounding:
    """By how much a reference is off that has the factors of its products cut to TF32.

    The root mean square of all elements, and the worst of them, in parts of the mean magnitude.
    """

    mean: float
    worst: float


def rounding_of(coarse: torch.Tensor, own: torch.Tensor, exact: torch.Tensor) -> Rounding | None:
    """Return the rounding of one output; None of whole numbers."""
    if not own.is_floating_point():
        return None
    finite = exact.isfinite() & own.isfinite()
    return _rounding(coarse, exact, finite, _scale(exact, finite))


def not_finite(
    given: torch.Tensor, own: torch.Tensor, exact: torch.Tensor, name: str, leave: Leave | None = None
) -> Difference | None:
    """Return what is not finite that should be, or the other way round; None: nothing. leave: as of `values_differ`."""
    if not own.is_floating_point():
        return None
    got, right, mine = given.double(), exact, own.double()
    special = ~right.isfinite() & ((right == mine) | (right.isnan() & mine.isnan()))
    same = (got == right) | (got.isnan() & right.isnan())
    if bool((special & ~same).any()) and not (leave and leave.special):
        return Difference("wrong-values", f"{name} is wrong where the reference is infinite or not a number.")
    if bool((right.isfinite() & mine.isfinite() & ~got.isfinite()).any()):
        return Difference("non-finite", f"{name} is not finite where the reference is; unwritten or overflowed.")
    return None


def _rounding(coarse: torch.Tensor, right: torch.Tensor, finite: torch.Tensor, scale: float) -> Rounding:
    off = torch.where(finite & coarse.isfinite(), (coarse - right).abs(), torch.zeros_like(right))
    if not off.numel() or not scale:
        return Rounding(0.0, 0.0)
    return Rounding(float(off.square().mean().sqrt()) / scale, float(off.max()) / scale)


def _coarser(error: torch.Tensor, rounding: Rounding, scale: float, relative: float, name: str) -> Difference | None:
    """Return by how much the errors, all together, exceed those of TF32; None: they do not."""
    if error.numel() < COARSE_ELEMENTS:
        return None
    off, of_tf32 = float(error.square().mean().sqrt()), rounding.mean * scale
    if off <= COARSE_MEAN * of_tf32 + 2 * relative * scale:
        return None
    return Difference("wrong-values", f"{name} is off by {off:.2g} on average, where TF32 products would be by {of_tf32:.2g}.")


def _scale(right: torch.Tensor, finite: torch.Tensor) -> float:
    return robust_scale(right.abs()[finite])


def _allowed(
    right: torch.Tensor,
    mine: torch.Tensor,
    finite: torch.Tensor,
    dtype: str,
    tolerance: dict[str, float],
    *,
    capped: bool = True,
    nearby: float = 0.0,
) -> tuple[torch.Tensor, float]:
    """Return by how much each element may be off, and the mean magnitude. capped, nearby: see `compare.tolerance`."""
    zero = torch.zeros_like(right)
    size, scale = torch.where(finite, right.abs(), zero), _scale(right, finite)
    relative = tolerance.get(dtype, RELATIVE[dtype])
    own_error = float(torch.where(finite, (mine - right).abs(), zero).max()) if right.numel() else 0.0
    return allowed_of(size, scale, max(own_error, nearby), dtype, relative, capped=capped), scale


def is_flat(own: torch.Tensor, exact: torch.Tensor, tolerance: dict[str, float]) -> bool:
    """Return what `compare.is_flat` does, of one output."""
    right = exact.double() if own.is_floating_point() else own.double()
    if right.numel() < 2:
        return not bool(right.any())
    finite = right.isfinite()
    if not bool(finite.any()):
        return True
    half = torch.full_like(right, 0.5)
    allowed = _allowed(right, own.double(), finite, dtype_name(own), tolerance)[0] if own.is_floating_point() else half
    near = (right - right[finite].median()).abs() <= allowed
    return float(near[finite].double().mean()) >= FLAT_SHARE


def is_large(tensor: torch.Tensor) -> bool:
    """Return whether an output is handed over in part."""
    return tensor.is_floating_point() and tensor.numel() * tensor.element_size() > LARGE_BYTES


def drawn_part(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """Return the elements of the drawn blocks, of the first and the last, and those that fill no block, in one dimension."""
    flat = tensor.contiguous().reshape(-1)
    whole = flat.numel() // BLOCK
    count = min(whole, MOST_BLOCKS)
    # The first and the last always: mistakes of bounds are there.
    chosen = sorted({0, whole - 1, *random.Random(seed).sample(range(whole), count)})
    blocks = flat[: whole * BLOCK].view(whole, BLOCK)[torch.tensor(chosen, device=flat.device)]
    return torch.cat([blocks.reshape(-1), flat[whole * BLOCK :]])


def sums(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of each block, in float64."""
    flat = tensor.contiguous().reshape(-1)
    whole = flat.numel() // BLOCK
    return flat[: whole * BLOCK].view(whole, BLOCK).sum(1, dtype=torch.float64)


def sums_differ(given: torch.Tensor, own: torch.Tensor, exact: torch.Tensor, name: str, relative: float) -> Difference | None:
    """Return why the sums of an output's blocks cannot be right, or None.

    Args:
        given: the candidate's sums.
        own: the reference's in the same dtype.
        exact: the reference's in float64.
        name: of the output, for the words.
        relative: what one element may be off by, of the mean magnitude of its block and of all.
    """
    right, mine = sums(exact), sums(own)
    finite = right.isfinite() & mine.isfinite()
    if not bool(finite.any()):
        return None
    if bool((finite & ~given.isfinite()).any()):
        return Difference("non-finite", f"{name} is not finite where the reference is; unwritten or overflowed.")
    size = sums(exact.abs())
    allowed = relative * (size + size[finite].mean()) + 2 * (mine - right).abs()
    wrong = finite & ((given - right).abs() > allowed)
    share = float(wrong.double().mean())
    if share == 0:
        return None
    return Difference("wrong-values", f"{name} differs from the reference in {share:.2%} of its blocks of {BLOCK:,} elements.")
