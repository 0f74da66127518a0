"""Brings a candidate's code into a sandboxed child, with parameters that the parent drew. Imports torch."""

from __future__ import annotations

import encodings.utf_8_sig  # noqa: F401  (once, in the warm worker: each candidate is written with it)
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

PATH = "candidate.py"  # in the child's own folder
DEEPEST_CAUSE = 100
COUNTER = "num_batches_tracked"


class Wrong(Exception):
    """The candidate cannot be judged right: reason and words."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


@contextmanager
def laid_to_candidate(reason: str, words: str) -> Iterator[None]:
    """Lay whatever is raised meanwhile to the candidate, also what would end a process.

    That a GPU's memory did not suffice may be its neighbours' doing, and is said elsewhere.
    """
    try:
        yield
    except (Wrong, torch.OutOfMemoryError):
        raise
    except BaseException as error:
        raise Wrong(reason, f"{words}: {said(error)}.") from None


def load_candidate(source: str) -> Any:
    """Import the candidate from a file, which Triton needs to find a kernel's text."""
    path = os.path.join(os.getcwd(), PATH)
    with open(path, "w", encoding="utf-8-sig") as file:  # behind its mark Python takes no other encoding
        file.write(source)
    spec = importlib.util.spec_from_file_location("candidate", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module  # dataclasses look there
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # it raises what it likes, SystemExit too
        raise Wrong("import-failed", f"the module raised {said(error)} when it was imported.") from None
    return module


def state_values(state: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> dict[str, str]:
    """Return the reference's name for each name of ModelNew's state dict. What counts batches may be missing on either side."""
    if set(state) != set(wanted):
        state, wanted = _uncounted(state), _uncounted(wanted)
    if set(state) != set(wanted):
        if [tuple(tensor.shape) for tensor in state.values()] != [tuple(tensor.shape) for tensor in wanted.values()]:
            raise Wrong(
                "parameters-differ",
                f"ModelNew's state dict has {sorted(state) or 'nothing'}, the reference's has {sorted(wanted) or 'nothing'}. "
                "Keep the same ones.",
            )
        return dict(zip(state, wanted, strict=True))
    for name, value in wanted.items():
        if tuple(state[name].shape) != tuple(value.shape):
            raise Wrong(
                "parameters-differ", f"{name} has shape {tuple(state[name].shape)}, the reference's has {tuple(value.shape)}."
            )
    return {name: name for name in wanted}


def _uncounted(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a state dict without the number that torch.nn's BatchNorm counts in training and computes nothing with."""
    return {
        name: tensor
        for name, tensor in state.items()
        if name.rpartition(".")[2] != COUNTER or tensor.dim() or tensor.dtype is not torch.int64
    }


def said(error: BaseException) -> str:
    """Return the innermost error in one line. The candidate may have made its class, so that asking it for words may fail too."""
    kind = "an error"
    try:
        for _ in range(DEEPEST_CAUSE):
            if not isinstance(error.__cause__, Exception):
                break
            error = error.__cause__
        kind = f"{type(error).__name__}"
        text = " ".join(str(error).split())
        return f"{kind}: {text[:400]}" if text else kind
    except BaseException:  # of the candidate's class
        return f"{kind} (its text cannot be read)"
