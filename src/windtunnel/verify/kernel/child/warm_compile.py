"""Loaded into the compiling worker before any candidate: what the compiler sets up on first use is set up once.

Computes on import; `to_the_end` is for workers that compile for a GPU that is there. Imports torch and triton.
"""

from __future__ import annotations

import torch

from windtunnel.verify.kernel.child.compile import STAGES, Compiler
from windtunnel.verify.kernel.child.warm_kernel import WARM_FOR, compile_to_the_end, own_cache, sum_of_product


def warm() -> None:
    """Take one small kernel through every stage that needs no other program."""
    compiler = Compiler(WARM_FOR)
    compiler.depth = len(STAGES)
    with compiler.installed():
        tensor = torch.ones(16, 16)
        sum_of_product[(1,)](tensor, tensor, tensor, BLOCK=16)


def to_the_end() -> None:
    """Compile a kernel to its binary.

    That asks the assembler for its version and makes a key of all of Triton's files, hundreds of megabytes: each child would do
    both again, for half a second.
    """
    with own_cache():
        compile_to_the_end()


warm()
