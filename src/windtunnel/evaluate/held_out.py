"""Losses of a model in units of held-out data, the same units for every model, so that differences are paired."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from windtunnel.data import PreparedData, PuzzleFile, ValidationBatches
from windtunnel.model import GPT
from windtunnel.recipe import UserError
from windtunnel.run import RunFolder

MOST_UNITS = 2000  # a matrix of draws and units has to fit into memory
LEAST_DOCUMENTS = 30  # with fewer documents held out, their differences are those of stretches of text
SCORED_AT_ONCE = 16_384  # tokens: their logits are the largest tensor, and must fit on small GPUs


@dataclass(frozen=True)
class Units:
    """How held-out targets fall into the units that a bootstrap draws.

    Attributes:
        words: what a unit is. of: (targets,) the unit of each target, ascending. count: units.
    """

    words: str
    of: np.ndarray
    count: int


@dataclass(frozen=True)
class Measured:
    """A model on held-out data, summed in each unit.

    Attributes:
        nats: (N, units) true cross-entropy after each supervision step, N = 1 of a plain model; the last counts.
        targets: (units,) targets. text_nats, bytes: (units,) of the targets that stand for text, after the last step.
        solved: (units,) 1 where every target is answered right, of puzzles; else None.
    """

    nats: np.ndarray
    targets: np.ndarray
    text_nats: np.ndarray
    bytes: np.ndarray
    solved: np.ndarray | None = None

    @property
    def losses(self) -> list[float]:
        """Nats a target after each supervision step."""
        return [float(nats.sum() / self.targets.sum()) for nats in self.nats]

    @property
    def loss(self) -> float:
        """Nats a target after the last supervision step."""
        return self.losses[-1]

    @property
    def bits_per_byte(self) -> float | None:
        """Bits per byte of text; None of puzzles, which are no text."""
        size = self.bytes.sum()
        return float(self.text_nats.sum() / np.log(2) / size) if self.solved is None and size else None


def require_data(
    run: RunFolder, data: PreparedData, fix: str = "bring back the corpus that the run was trained on, or train a new run"
) -> None:
    """Refuse data other than a run was trained on: what is held out now may have been trained on then. Raises UserError."""
    trained = (run.manifest.get("data") or {}).get("checksum", data.checksum)
    if trained not in (None, data.checksum):
        raise UserError(f"{run.path} was trained on other data: checksum {trained}, now {data.checksum}", fix)


def held_out_units(data: PreparedData, sequence: int, limit: int) -> Units:
    """Documents of the first `limit` held-out targets, neighbours together where they are many; puzzles one by one."""
    file = data.validation
    targets = file.targets(limit)
    if isinstance(file, PuzzleFile):
        of = np.arange(targets) // file.cells
        return _merged(of, "puzzles")
    # Target i is token i + 1; a document's first target is its own `bos`.
    starts = np.asarray(file.array[1 : targets + 1] == data.tokenizer.bos)
    documents = np.cumsum(starts)
    documents -= documents[0]
    if documents[-1] + 1 < LEAST_DOCUMENTS:
        return _merged(np.arange(targets) // sequence, f"stretches of {sequence:,} tokens")
    return _merged(documents, "documents")


def _merged(of: np.ndarray, words: str) -> Units:
    count = int(of[-1]) + 1
    # Neighbours, which are often of one source and alike.
    together = -(-count // MOST_UNITS)
    if together > 1:
        of, words = of // together, f"groups of {together} neighbouring {words}"
    return Units(words, of, int(of[-1]) + 1)


@torch.no_grad()
def measure(model: GPT, data: PreparedData, units: Units) -> Measured:
    """Score the held-out targets that `units` were made for, after each supervision step that the model uses."""
    sequence, device = model.shape.sequence, model.head.weight.device
    batches = ValidationBatches(
        data.validation, sequence=sequence, micro_batch=max(1, SCORED_AT_ONCE // sequence), limit=len(units.of), device=device
    )
    length = np.asarray(data.tokenizer.token_bytes())
    puzzles = isinstance(data.validation, PuzzleFile)
    steps = int(getattr(model, "supervision", 1)) if model.shape.supervision else 1
    # `position` runs through `units.of`: batches come in the file's order, and their padding (y < 0) counts as no target.
    sums, position = np.zeros((steps + 4, units.count)), 0
    training = model.training
    model.eval()
    try:
        for x, y in batches:
            here = (y >= 0).cpu().numpy()
            found = _losses(model, x, y)[:, here]
            of = units.of[position : position + found.shape[1]]
            size = length[y.cpu().numpy()[here]]
            wrong = (_tokens(model, x) != y).cpu().numpy()[here] if puzzles else np.zeros(len(of))
            rows = [*found, np.where(size > 0, found[-1], 0.0), np.ones(len(of)), size, wrong]
            for row, values in enumerate(rows):
                sums[row] += np.bincount(of, weights=values, minlength=units.count)
            position += len(of)
    finally:
        model.train(training)
    text, targets, size, wrong = sums[steps:]
    return Measured(sums[:steps], targets, text, size, (wrong == 0).astype(float) if puzzles else None)


def _losses(model: Any, x: Tensor, y: Tensor) -> np.ndarray:
    """Return (N, B, T) nats."""
    found = model(x, y, reduction="none")[None] if not model.shape.supervision else model.step_losses(x, y)
    return np.asarray(found.double().cpu().numpy())


def _tokens(model: Any, x: Tensor) -> Tensor:
    """Return (B, T) likeliest tokens in the end."""
    tokens: Tensor = model(x).argmax(-1) if not model.shape.supervision else model.solve_steps(x)[0][-1]
    return tokens
