"""Loaded into the compiling worker before any candidate: what the compiler sets up on first use is set up once.

Computes on import, which is its only purpose. Imports torch and triton.
"""

from __future__ import annotations

import torch

from windtunnel.verify.kernel.child.compile import STAGES, Compiler
from windtunnel.verify.kernel.child.warm_kernel import WARM_FOR, sum_of_product


def warm() -> None:
    """One small kernel through every stage."""
    compiler = Compiler(WARM_FOR)
    compiler.depth = len(STAGES)
    with compiler.installed():
        tensor = torch.ones(16, 16)
        sum_of_product[(1,)](tensor, tensor, tensor, BLOCK=16)


warm()
