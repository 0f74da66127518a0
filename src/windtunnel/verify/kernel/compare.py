"""Whether what a candidate returned is what the reference returns: metadata exactly, values within a stated error.

The right answer is the reference in float64. An element may be off by
    relative · |right| + relative · mean(|right|) + two units in the last place + a multiple of the reference's own worst error,
the last bounded: it is large where the task is badly conditioned, where no kernel can do better. The mean scales the absolute
part, so that zeros or a constant are not near an output of small numbers.
Runs in the parent, in numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from windtunnel.verify.kernel.arrays import Array, row_major
from windtunnel.verify.kernel.task import Task

if TYPE_CHECKING:
    from windtunnel.verify.kernel.prepared import Ready

# Far above what honest kernels differ by, well below what computing in the next smaller type costs.
RELATIVE = {"float64": 1e-9, "float32": 5e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
FLOOR = {"float64": 1e-300, "float32": 1e-37, "float16": 2.0**-23, "bfloat16": 1e-37}  # denormals may be flushed
OWN_ERROR = {"float64": 8.0, "float32": 8.0, "float16": 2.0, "bfloat16": 2.0}  # summation orders differ
OWN_ERROR_AT_MOST = {"float64": 100.0, "float32": 100.0, "float16": 10.0, "bfloat16": 10.0}  # of relative · mean
OF_VALUES = ("wrong-values", "non-finite")  # reasons that are of the values, not of shape or structure
FLAT_SHARE = 0.95
FEW = 64  # elements of an output
GAP = 1000.0  # between the largest magnitudes and all others


@dataclass(frozen=True)
class Difference:
    """Why an output is not the right one."""

    reason: str
    message: str


def difference(outputs: Sequence[Array], kind: str, ready: Ready, task: Task, *, capped: bool = True) -> Difference | None:
    """Return the first thing wrong with a candidate's outputs on one case, or None.

    kind: 'tensor' or 'tuple'. capped: see `tolerance`.
    """
    if kind != ready.kind or len(outputs) != len(ready.own):
        wanted = "one tensor" if ready.kind == "tensor" else f"a tuple of {len(ready.own)} tensors"
        given = "one tensor" if kind == "tensor" else f"a tuple of {len(outputs)}"
        return Difference("wrong-structure", f"forward returned {given}, expected {wanted}.")
    for number, (given_array, own, exact) in enumerate(zip(outputs, ready.own, ready.exact, strict=True)):
        name = "the output" if ready.kind == "tensor" else f"output {number}"
        found = metadata(given_array, own, name) or _values(given_array, own, exact, task, name, capped=capped)
        if found is not None and found.reason == "wrong-values" and (error := nearby_of(ready, number)):
            found = _values(given_array, own, exact, task, name, capped=capped, nearby=error)
        if found is not None:
            return found
    return None


def nearby_of(ready: Ready, number: int) -> float:
    """Return the reference's worst error with inputs nearby, of an output: asked for only where that is needed, as it takes long.

    Of few elements the error with the inputs alone says little: one number may be right by luck to its last digit. 0 of many.
    """
    own = ready.own[number]
    errors = ready.errors() if own.floating and 0 < own.raw().size <= FEW else ()
    return errors[number] if errors else 0.0


def metadata(given: Array, own: Array, name: str) -> Difference | None:
    """Return what is wrong with all of an output but its elements."""
    if given.shape != own.shape:
        return Difference("wrong-shape", f"{name} has shape {given.shape}, expected {own.shape}.")
    if given.dtype != own.dtype:
        return Difference("wrong-dtype", f"{name} has dtype {given.dtype}, expected {own.dtype}.")
    extents = [n for n, extent in enumerate(own.shape) if extent > 1]
    allowed = [own.stride, row_major(own.shape)]
    if 0 not in own.shape and not any(all(given.stride[n] == stride[n] for n in extents) for stride in allowed):
        return Difference("wrong-stride", f"{name} has strides {given.stride}, expected {own.stride} (contiguous).")
    return None


def _values(
    given: Array, own: Array, exact: Array, task: Task, name: str, *, capped: bool, nearby: float = 0.0
) -> Difference | None:
    if not own.floating:
        return _whole_numbers(given, own, exact, task, name)
    got, right, own_values = given.values(), exact.values(), own.values()
    finite = np.isfinite(right) & np.isfinite(own_values)
    # Where float64 and the dtype disagree about being finite (overflow), neither is demanded.
    special = ~np.isfinite(right) & ((right == own_values) | (np.isnan(right) & np.isnan(own_values)))
    if special.any():
        same = (got == right) | (np.isnan(got) & np.isnan(right))
        if not same[special].all():
            return Difference("wrong-values", f"{name} is wrong where the reference is infinite or not a number.")
    broken = finite & ~np.isfinite(got)
    if broken.any():
        where = _place(broken)
        return Difference(
            "non-finite", f"{name} is {got[where]} at {list(where)}, expected {right[where]:.6g}; unwritten or overflowed."
        )
    error = _distance(got, right, finite)
    allowed = tolerance(own, exact, task, capped=capped, nearby=nearby)
    wrong = finite & (error > allowed)
    if not wrong.any():
        return None
    where = tuple(int(n) for n in np.unravel_index(int(np.argmax(np.where(wrong, error / allowed, 0.0))), right.shape))
    share = float(wrong.mean())
    return Difference(
        "wrong-values",
        f"{name} differs from the reference in {share:.1%} of its elements; the worst, at {list(where)}, is "
        f"{got[where]:.6g}, expected {right[where]:.6g} within {allowed[where]:.2g}.",
    )


def worst_error(given: Array, own: Array, exact: Array, task: Task, nearby: float = 0.0) -> tuple[float, float]:
    """Return the largest error of an output that is right, and the largest as a share of what its element may be off by."""
    got, right = given.values(), exact.values()
    finite = np.isfinite(right) & np.isfinite(own.values())
    error = _distance(got, right, finite)
    share = np.divide(error, tolerance(own, exact, task, nearby=nearby), where=finite, out=np.zeros_like(error))
    return float(np.max(error, initial=0.0)), float(np.max(share, initial=0.0))


def tolerance(own: Array, exact: Array, task: Task, *, capped: bool = True, nearby: float = 0.0) -> np.ndarray:
    """Return by how much each element may be off.

    capped: whether the multiple of the reference's own error is bounded. nearby: the least that this error is.
    """
    right, own_values = exact.values(), own.values()
    finite = np.isfinite(right) & np.isfinite(own_values)
    size = np.abs(right, where=finite, out=np.zeros_like(right))
    scale = robust_scale(size[finite])
    relative = task.tolerance.get(own.dtype, RELATIVE[own.dtype])
    own_error = float(np.max(_distance(own_values, right, finite), initial=nearby))
    return allowed_of(size, scale, own_error, own.dtype, relative, capped=capped)


def allowed_of(size: Any, scale: float, own_error: float, dtype: str, relative: float, *, capped: bool) -> Any:
    """Return by how much each element may be off, by its magnitude (an array or a tensor); the rule at the top of this module."""
    slack = OWN_ERROR[dtype] * own_error
    if capped:
        slack = min(slack, OWN_ERROR_AT_MOST[dtype] * relative * scale)
    return relative * (size + scale) + 2 * EPSILON[dtype] * size + slack + FLOOR[dtype]


def is_rough(ready: Ready, task: Task) -> bool:
    """Return whether the reference in its dtype would itself be refused: no candidate can be asked for more digits."""
    return difference(ready.own, ready.kind, ready, task) is not None


def robust_scale(sizes: Any) -> float:
    """Return the mean magnitude, but of what is far above all else: a mask of -1e9 does not set the scale of what it leaves.

    sizes: an array or a tensor of one dimension.
    """
    if not len(sizes):
        return 0.0
    top = float(sizes.max())
    rest = sizes[sizes < top / 2]
    if len(rest) and 0 < float(rest.max()) < top / GAP:
        sizes = rest
    return float(sizes.mean())


def _distance(left: np.ndarray, right: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Return |left − right| at those places, 0 elsewhere."""
    return np.abs(np.subtract(left, right, where=where, out=np.zeros_like(right)))


def _whole_numbers(given: Array, own: Array, exact: Array, task: Task, name: str) -> Difference | None:
    """Return where the reference itself gives another number in float64, both are right: there its dtype rounds across a tie."""
    got, right = given.values(), own.values()
    off = (got != right) & (got != exact.values())
    if not off.any():
        return None
    near = np.abs(got - right) <= 1
    if task.mismatched and off.mean() <= task.mismatched and bool(near.all()):
        return None
    where = _place(off)
    return Difference(
        "wrong-values",
        f"{name} differs from the reference in {float(off.mean()):.1%} of its elements; first at {list(where)}: "
        f"{got[where]}, expected {right[where]}.",
    )


def is_flat(ready: Ready, task: Task) -> bool:
    """Return whether a constant would pass for every output: such a case judges nothing."""
    return all(_flat(own, exact, task) for own, exact in zip(ready.own, ready.exact, strict=True))


def _flat(own: Array, exact: Array, task: Task) -> bool:
    right = exact.values() if own.floating else own.values().astype(np.float64)
    if right.size < 2:
        # One number: zero would pass for it only if it is zero.
        return right.size == 0 or not np.any(right)
    finite = np.isfinite(right)
    if not finite.any():
        return True
    allowed = tolerance(own, exact, task) if own.floating else np.full(right.shape, 0.5)
    middle = float(np.median(right[finite]))
    return bool((np.abs(right - middle)[finite] <= allowed[finite]).mean() >= FLAT_SHARE)


def unmoved_share(knocked: Sequence[Array], ready: Ready) -> float:
    """Return the share of the output that was already there with every kernel knocked out: not poison but a number.

    Only floating outputs are looked at: their poison is NaN, which no honest value is.
    """
    there = total = 0
    for array, own in zip(knocked, ready.own, strict=False):
        if not array.floating or not own.floating:
            continue
        there += int(np.isfinite(array.values()).sum())
        total += array.raw().size
    return there / total if total else 0.0


def _place(mask: np.ndarray) -> tuple[int, ...]:
    return tuple(int(n) for n in np.argwhere(mask)[0])
