"""Memory that runs out: how it is recognised, whoever allocates."""

from __future__ import annotations

import torch


def out_of_memory(error: BaseException) -> bool:
    """Return whether a failure says that memory ran out: in PyTorch's, CUDA's, cuBLAS's or NCCL's words."""
    text = str(error).lower()
    words = ("out of memory", "can't allocate memory", "cannot allocate memory", "alloc_failed")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(word in text for word in words)
