"""Between torch tensors and bytes that travel. Runs only in sandboxed children: imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from windtunnel.verify.kernel.arrays import Buffer


def dtype_name(tensor: torch.Tensor) -> str:
    """Return 'float32' for torch.float32."""
    return str(tensor.dtype).removeprefix("torch.")


def head_of(tensor: torch.Tensor) -> dict[str, Any]:
    """Return everything but the elements, as JSON; the strides are its real ones."""
    return {"dtype": dtype_name(tensor), "shape": list(tensor.shape), "stride": list(tensor.stride())}


def sent(tensor: torch.Tensor, buffers: list[Buffer]) -> dict[str, Any]:
    """Add a copy of a tensor's elements to the buffers of a reply; return what describes it there."""
    flat = tensor.detach().to("cpu", copy=False).contiguous()
    buffers.append(flat.reshape(-1).view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return {**head_of(tensor), "at": len(buffers) - 1}


def received(head: Mapping[str, Any], data: Buffer) -> torch.Tensor:
    """Return a fresh contiguous tensor from a head that the parent wrote, and its elements."""
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if len(data) else torch.empty(0, dtype=torch.uint8)
    return flat.view(getattr(torch, head["dtype"])).reshape(head["shape"])
