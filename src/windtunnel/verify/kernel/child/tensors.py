"""Between torch tensors and travelling arrays. Runs only in sandboxed children: imports torch."""

from __future__ import annotations

from typing import Any

import torch

from windtunnel.verify.kernel.arrays import Array, Buffer, row_major


def dtype_name(tensor: torch.Tensor) -> str:
    """Return 'float32' for torch.float32."""
    return str(tensor.dtype).removeprefix("torch.")


def head_of(tensor: torch.Tensor) -> dict[str, Any]:
    """Return everything but the elements, as JSON."""
    return {"dtype": dtype_name(tensor), "shape": list(tensor.shape), "stride": list(tensor.stride())}


def to_array(tensor: torch.Tensor) -> Array:
    """Return a copy of a strided tensor's elements, with its real strides."""
    flat = tensor.detach().to("cpu", copy=False).contiguous()
    data = flat.reshape(-1).view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return Array(dtype_name(tensor), tuple(tensor.shape), tuple(tensor.stride()), data)


def to_tensor(array: Array, device: str = "cpu") -> torch.Tensor:
    """Return a fresh contiguous tensor with an array's elements. On a GPU they are not copied on the way there."""
    data = bytearray(array.data) if device == "cpu" else array.data
    flat = torch.frombuffer(data, dtype=torch.uint8) if len(data) else torch.empty(0, dtype=torch.uint8)
    return flat.view(getattr(torch, array.dtype)).reshape(array.shape).to(device)


def from_head(head: dict[str, Any], data: Buffer) -> Array:
    """Return an array from a head that the parent wrote."""
    shape = tuple(head["shape"])
    return Array(head["dtype"], shape, row_major(shape), data)
