"""What is handed over of an output too large to be copied: blocks of its elements at places drawn after it was made, and every
block's sum. Imports torch.

An element that is wrong in a block that was not drawn shows in its block's sum, unless it is small beside what a block may be off
by; such errors are for the tiny sizes to find, where every element is compared.
"""

from __future__ import annotations

import random

import torch

from windtunnel.verify.kernel.compare import Difference

LARGE_BYTES = 64 << 20
BLOCK = 16_384  # elements
MOST_BLOCKS = 512


def is_large(tensor: torch.Tensor) -> bool:
    """Whether an output is handed over in part."""
    return tensor.is_floating_point() and tensor.numel() * tensor.element_size() > LARGE_BYTES


def drawn_part(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """The elements of the drawn blocks, of the first and the last, and those that fill no block, in one dimension."""
    flat = tensor.contiguous().reshape(-1)
    whole = flat.numel() // BLOCK
    count = min(whole, MOST_BLOCKS)
    chosen = sorted({0, whole - 1, *random.Random(seed).sample(range(whole), count)})
    blocks = flat[: whole * BLOCK].view(whole, BLOCK)[torch.tensor(chosen, device=flat.device)]
    return torch.cat([blocks.reshape(-1), flat[whole * BLOCK :]])


def sums(tensor: torch.Tensor) -> torch.Tensor:
    """Of each block, in float64."""
    flat = tensor.contiguous().reshape(-1)
    whole = flat.numel() // BLOCK
    return flat[: whole * BLOCK].view(whole, BLOCK).sum(1, dtype=torch.float64)


def sums_differ(given: torch.Tensor, own: torch.Tensor, exact: torch.Tensor, name: str, relative: float) -> Difference | None:
    """Why the sums of an output's blocks cannot be right, or None. relative: what one element may be off by, of the mean
    magnitude of its block and of all."""
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
