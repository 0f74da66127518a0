"""Prepared Sudoku on disk, and how a loader reads them: a row is a puzzle and its solution under a fresh symmetry."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from windtunnel.recipe import UserError

from .documents import Array
from .sudoku_make import Puzzles
from .sudoku_symmetry import draw_symmetries
from .tokens import Draw, Short, TokenFile

_EXTRA = 3  # bytes a puzzle behind the grids: its grade and, in two, its splits


@dataclass(frozen=True)
class PuzzleFile(TokenFile):
    """Puzzles in one file: all solutions, all inputs, all grades (uint8), all splits (uint16, little-endian).

    `count` counts the targets: every cell of every solution. `array` is the solutions one after the other.
    """

    cells: int = 81

    def __len__(self) -> int:
        return self.count

    @property
    def bytes(self) -> int:
        return self.puzzles * (2 * self.cells + _EXTRA)

    @property
    def puzzles(self) -> int:
        """Puzzles in the file."""
        return self.count // self.cells

    @cached_property
    def _raw(self) -> Array:
        return np.memmap(self.path, dtype=np.uint8, mode="r", shape=(self.bytes,))

    @cached_property
    def content(self) -> Puzzles:
        """All puzzles, memory-mapped and read-only."""
        n, grids = self.puzzles, self.count
        solutions, inputs = (self._raw[i * grids : (i + 1) * grids].reshape(n, self.cells) for i in range(2))
        return Puzzles(inputs, solutions, self._raw[2 * grids : 2 * grids + n], self._raw[2 * grids + n :].view("<u2"))

    def sequences(self, sequence: int) -> int:
        """Puzzles. Raises UserError if the model's sequence is not one puzzle long."""
        if sequence != self.cells:
            raise UserError(
                f"model.sequence is {sequence}, and a puzzle has {self.cells} cells", f"--set model.sequence={self.cells}"
            )
        return self.puzzles

    def targets(self, limit: int | None = None) -> int:
        """Targets in the file, or those of as many puzzles as have `limit` of them."""
        return self.count if limit is None else min(self.count, max(1, -(-limit // self.cells)) * self.cells)

    def width(self, sequence: int) -> int:
        """Ids that a row of `read` takes: a puzzle and its solution."""
        return 2 * self.cells

    def _fill(self, rows: Array, sequence: int, out: Array, targets: int | None, draw: Draw | None) -> Short:
        """Copy puzzles into `out`, (rows, 2 * cells): the inputs, then the solutions; a negative row stays empty.

        Args:
            targets: not needed: whoever counts them asks for whole puzzles.
            draw: each puzzle is shown under the symmetry drawn for it and its epoch; None: as it is stored.
        """
        content, there = self.content, np.maximum(rows, 0)
        inputs, solutions = content.inputs[there], content.solutions[there]
        if draw is not None:
            symmetry = draw_symmetries(self.cells, draw.seed, draw.epochs, there)
            inputs, solutions = symmetry.apply(inputs), symmetry.apply(solutions)
        out[:, : self.cells], out[:, self.cells :] = inputs, solutions
        out[rows < 0] = 0
        return dict.fromkeys(np.flatnonzero(rows < 0).tolist(), 0)


def write_puzzle_file(path: Path, puzzles: Puzzles) -> None:
    """Write puzzles as `PuzzleFile` reads them, down to the disk."""
    with open(path, "wb") as file:
        for part in (puzzles.solutions, puzzles.inputs, puzzles.grades, puzzles.splits.astype("<u2")):
            file.write(np.ascontiguousarray(part).data.cast("B"))
        file.flush()
        os.fsync(file.fileno())
