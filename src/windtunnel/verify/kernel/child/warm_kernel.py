"""A kernel that takes the compiler through a product and a reduction. Imports triton."""

from __future__ import annotations

import triton
import triton.language as tl

WARM_FOR = 90


@triton.jit
def sum_of_product(x, y, z, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton takes an annotation for a type of its own
    """Set z to the sum over rows of exp(x @ y), for squares of BLOCK."""
    at = tl.arange(0, BLOCK)
    square = at[:, None] * BLOCK + at[None, :]
    product = tl.dot(tl.load(x + square), tl.load(y + square))
    tl.store(z + at, tl.sum(tl.exp(product), axis=1), mask=at < BLOCK)
