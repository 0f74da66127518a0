"""Loaded into the compiling worker before any candidate: what the compiler sets up on first use is set up once.

Computes on import, which is its only purpose. Imports torch and triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from windtunnel.verify.kernel.child_compile import STAGES, Compiler

WARM_FOR = 90


@triton.jit
def _sum_of_product(x, y, z, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, BLOCK)
    square = at[:, None] * BLOCK + at[None, :]
    product = tl.dot(tl.load(x + square), tl.load(y + square))
    tl.store(z + at, tl.sum(tl.exp(product), axis=1), mask=at < BLOCK)


def warm() -> None:
    """One small kernel through every stage."""
    compiler = Compiler(WARM_FOR)
    compiler.depth = len(STAGES)
    with compiler.installed():
        tensor = torch.ones(16, 16)
        _sum_of_product[(1,)](tensor, tensor, tensor, BLOCK=16)


warm()
