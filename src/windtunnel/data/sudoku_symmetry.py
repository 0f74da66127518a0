"""Symmetries of Sudoku: random ones to see each puzzle anew every epoch, and a key that no symmetry changes.

The symmetries are: other digits, bands (and stacks) in another order, rows within bands (columns within stacks) in
another order, and transposition; 1.2 * 10^12 of a 9x9 grid. A symmetry of a puzzle has as many solutions and needs
the same rules.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .documents import GOLDEN, Array, mix
from .sudoku_solve import side_of

_ROUNDS = 4


@dataclass(frozen=True)
class Symmetry:
    """One symmetry for each of n puzzles.

    Attributes:
        cells: (n, cells) int64, from which cell each cell takes its digit.
        digits: (n, side + 1) uint8, what each digit becomes; a blank stays blank.
    """

    cells: Array
    digits: Array

    def apply(self, grids: Array) -> Array:
        """(n, cells) grids, or puzzles, as each one's symmetry makes them."""
        return np.asarray(np.take_along_axis(self.digits, np.take_along_axis(grids, self.cells, 1), 1))


def draw_symmetries(cells: int, seed: int, epochs: Array, puzzles: Array) -> Symmetry:
    """(n,) symmetries, each a function of the seed, its epoch and its puzzle's index alone; all equally likely."""
    side = side_of(cells)
    box = round(side**0.5)
    n = len(puzzles)
    start = mix(mix(np.array([seed & (2**64 - 1)], dtype=np.uint64) + GOLDEN) + epochs.astype(np.uint64) * GOLDEN)
    state = mix(start + (puzzles.astype(np.uint64) + np.uint64(1)) * GOLDEN)
    draws = 2 * (box + side) + side + 1
    keys = mix(state[:, None] + np.arange(1, draws + 1, dtype=np.uint64) * GOLDEN)
    rows, columns = (_lines(keys[:, i * (box + side) : (i + 1) * (box + side)], box) for i in range(2))
    turned = (keys[:, -1] & np.uint64(1)).astype(bool)[:, None, None]
    r, c = rows[:, :, None], columns[:, None, :]
    source = np.where(turned, c * side + r, r * side + c).reshape(n, cells)
    digits = np.zeros((n, side + 1), dtype=np.uint8)
    digits[:, 1:] = 1 + keys[:, -1 - side : -1].argsort(axis=1)
    return Symmetry(source, digits)


def _lines(keys: Array, box: int) -> Array:
    """(n, box + side) keys -> (n, side) from which row (or column) each takes its digits."""
    bands = keys[:, :box].argsort(axis=1)
    within = keys[:, box:].reshape(-1, box, box).argsort(axis=2)
    return np.asarray((bands[:, :, None] * box + within).reshape(len(keys), -1))


def symmetry_key(inputs: Array, solutions: Array) -> Array:
    """(n,) uint64, the same for all symmetries of a puzzle; other puzzles nearly always have another.

    Every cell, row, column, box, band, stack and digit has a colour, at first whether a clue stands there, and takes
    up the colours of what it belongs to or holds, a few times (colour refinement). Colours are joined by sums,
    which no order changes, and rows play the same part as columns, so no symmetry changes the sum of all.

    Args:
        inputs: (n, cells) puzzles, 0 for a blank.
        solutions: (n, cells) their solutions.
    """
    n, cells = inputs.shape
    side = side_of(cells)
    box = round(side**0.5)
    with np.errstate(over="ignore"):
        colour = mix((inputs > 0).astype(np.uint64) + GOLDEN)
        hot = solutions[:, None, :] == np.arange(1, side + 1, dtype=np.uint8)[None, :, None]
        for _ in range(_ROUNDS):
            grid = colour.reshape(n, side, side)
            rows, columns = mix(grid.sum(axis=2)), mix(grid.sum(axis=1))
            boxes = mix(grid.reshape(n, box, box, box, box).sum(axis=(2, 4)))
            bands, stacks = (mix(lines.reshape(n, box, box).sum(axis=2) + GOLDEN) for lines in (rows, columns))
            rows, columns = (
                mix(lines + np.repeat(mix(group), box, axis=1)) for lines, group in ((rows, bands), (columns, stacks))
            )
            digits = mix(np.where(hot, colour[:, None, :], np.uint64(0)).sum(axis=2))
            lines = mix(rows)[:, :, None] + mix(columns)[:, None, :]
            block = np.repeat(np.repeat(mix(boxes + GOLDEN), box, axis=1), box, axis=2)
            digit = np.take_along_axis(digits, solutions.astype(np.int64) - 1, axis=1)
            colour = mix(colour + (mix(lines) ^ mix(block + GOLDEN)).reshape(n, cells) + mix(digit))
        return mix(colour.sum(axis=1))
