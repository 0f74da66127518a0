"""Loaded into the compiling worker before any candidate: what the compiler sets up on first use is set up once.

Computes on import; `to_the_end` is for workers that compile for a GPU that is there. Imports torch and triton.
"""

from __future__ import annotations

import os
import tempfile

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from windtunnel.verify.kernel.child.compile import STAGES, Compiler
from windtunnel.verify.kernel.child.warm_kernel import WARM_FOR, sum_of_product


def warm() -> None:
    """Take one small kernel through every stage that needs no other program."""
    compiler = Compiler(WARM_FOR)
    compiler.depth = len(STAGES)
    with compiler.installed():
        tensor = torch.ones(16, 16)
        sum_of_product[(1,)](tensor, tensor, tensor, BLOCK=16)


def to_the_end() -> None:
    """Compile a kernel to its binary by Triton's own way.

    That asks the assembler for its version and makes a key of all of Triton's files, hundreds of megabytes: each child would do
    both again, for half a second.
    """
    before = os.environ.get("TRITON_CACHE_DIR")
    # In a folder of its own: in one that others can write to, somebody could have put a kernel of his.
    with tempfile.TemporaryDirectory(prefix="windtunnel-triton-") as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        try:
            signature = {"x": "*fp32", "y": "*fp32", "z": "*fp32", "BLOCK": "constexpr"}
            triton.compile(ASTSource(sum_of_product, signature, {(3,): 16}), target=GPUTarget("cuda", WARM_FOR, 32))
        finally:
            if before is None:
                del os.environ["TRITON_CACHE_DIR"]
            else:
                os.environ["TRITON_CACHE_DIR"] = before


warm()
