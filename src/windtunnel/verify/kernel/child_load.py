"""Brings a candidate's code into a sandboxed child, with parameters that the parent drew. Imports torch."""

from __future__ import annotations

import importlib.util
import os
import sys
from types import SimpleNamespace
from typing import Any

import torch

PATH = "candidate.py"  # in the child's own folder


class Wrong(Exception):
    """The candidate cannot be judged right: reason and words."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


def load_candidate(source: str) -> Any:
    """Imports the candidate from a file, which Triton needs to find a kernel's text."""
    path = os.path.join(os.getcwd(), PATH)
    with open(path, "w", encoding="utf-8") as file:
        file.write(source)
    spec = importlib.util.spec_from_file_location("candidate", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module  # dataclasses look there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise Wrong("import-failed", f"the module raised {said(error)} when it was imported.") from None
    return module


@torch.no_grad()
def set_parameters(model: torch.nn.Module, names: list[str], wanted: list[torch.Tensor], dtype: torch.dtype) -> None:
    """Writes the parent's values into the state dict: by name, else by order where all shapes agree."""
    state = model.state_dict()
    if set(state) != set(names):
        given = [tuple(tensor.shape) for tensor in state.values()]
        if given != [tuple(tensor.shape) for tensor in wanted]:
            raise Wrong(
                "parameters-differ",
                f"ModelNew's state dict has {sorted(state) or 'nothing'}, the reference's has {sorted(names) or 'nothing'}. "
                "Keep the same ones.",
            )
        names = list(state)
    for name, value in zip(names, wanted, strict=True):
        if tuple(state[name].shape) != tuple(value.shape):
            raise Wrong(
                "parameters-differ", f"{name} has shape {tuple(state[name].shape)}, the reference's has {tuple(value.shape)}."
            )
    model.to(dtype)
    for name, tensor in model.state_dict().items():
        tensor.copy_(wanted[names.index(name)])


def said(error: Exception) -> str:
    """The innermost error in one line."""
    while error.__cause__ is not None and isinstance(error.__cause__, Exception):
        error = error.__cause__
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:400]}" if text else type(error).__name__


def stand_in_for_cuda() -> None:
    """Host code may ask for the number of multiprocessors or select a device; on a CPU it is answered."""
    properties = SimpleNamespace(
        multi_processor_count=4, warp_size=32, major=9, minor=0, name="interpreter", total_memory=1 << 30
    )
    stand_ins: dict[str, Any] = {
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: (9, 0),
        "current_device": lambda: 0,
        "is_available": lambda: True,
        "device": _Nothing,
        "device_of": _Nothing,
    }
    for name, value in stand_ins.items():
        setattr(torch.cuda, name, value)


class _Nothing:
    def __init__(self, device: Any = None) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass
