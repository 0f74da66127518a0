"""One device for what a reference asks a GPU for by its name, as some files' get_inputs() do. Imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class Here(TorchFunctionMode):
    """While this lasts, "cuda" means another device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self, function: Any, types: Any, arguments: Sequence[Any] = (), keywords: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of PyTorch's with the device in place of a GPU."""
        keywords = dict(keywords or {})
        if _is_gpu(keywords.get("device")):
            keywords["device"] = self.device
        if function is torch.Tensor.cuda:
            return arguments[0].to(self.device)
        if function is torch.Tensor.to:
            arguments = [self.device if _is_gpu(value) else value for value in arguments]
        return function(*arguments, **keywords)


def _is_gpu(value: object) -> bool:
    return isinstance(value, str | torch.device) and str(value).startswith("cuda")
