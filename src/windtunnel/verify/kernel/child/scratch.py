"""Memory that a kernel itself needs: tl.make_tensor_descriptor builds its descriptors in it.

Triton asks an allocator that the program sets by triton.set_allocator. Here it is always ours, so that nothing of the
candidate's runs inside a launch or lasts beyond forward; the candidate's call does nothing. Imports torch and triton.
"""

from __future__ import annotations

import torch
import triton


def own_scratch() -> None:
    """Sets our allocator and takes the setter away. Before the candidate is imported, in the thread that runs it."""
    if triton.set_allocator is _ignored:
        return
    triton.set_allocator(_scratch)
    triton.set_allocator = _ignored


def _scratch(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    """size: bytes. PyTorch's own blocks are aligned to 512 bytes, descriptors to 128."""
    return torch.empty(size, dtype=torch.int8, device="cuda")


def _ignored(allocator: object) -> None:
    """What stands in for triton.set_allocator."""
