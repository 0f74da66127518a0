"""A kernel that takes the compiler through a product and a reduction, for workers to compile once. Imports triton."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

WARM_FOR = 90


@triton.jit
def sum_of_product(x, y, z, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton takes an annotation for a type of its own
    """Set z to the sum over rows of exp(x @ y), for squares of BLOCK."""
    at = tl.arange(0, BLOCK)
    square = at[:, None] * BLOCK + at[None, :]
    product = tl.dot(tl.load(x + square), tl.load(y + square))
    tl.store(z + at, tl.sum(tl.exp(product), axis=1), mask=at < BLOCK)


def compile_to_the_end() -> None:
    """Compile it to its binary by Triton's own way, as no child then has to begin with."""
    signature = {"x": "*fp32", "y": "*fp32", "z": "*fp32", "BLOCK": "constexpr"}
    triton.compile(ASTSource(sum_of_product, signature, {(3,): 16}), target=GPUTarget("cuda", WARM_FOR, 32))


@contextlib.contextmanager
def own_cache() -> Iterator[None]:
    """Have Triton keep its files in a folder of its own: in one that others can write to, somebody could have put his."""
    before = os.environ.get("TRITON_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="windtunnel-triton-") as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["TRITON_CACHE_DIR"]
            else:
                os.environ["TRITON_CACHE_DIR"] = before
