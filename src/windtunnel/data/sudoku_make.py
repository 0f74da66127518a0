"""Sudoku: puzzles with one solution, made from random numbers, their grades, and the symmetries that keep them valid."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .documents import GOLDEN, Array, mix
from .sudoku_solve import (
    IMPOSSIBLE,
    SOLVED,
    candidates_of,
    fewest,
    grades_of,
    grids_of,
    propagate,
    search,
    side_of,
    solve_grids,
)

GRADES = ("easy", "medium", "hard")
_ONE = np.uint16(1)


@dataclass(frozen=True)
class Puzzles:
    """n puzzles with one solution each.

    Attributes:
        inputs: (n, cells) uint8, 0 for a blank.
        solutions: (n, cells) uint8, 1 to side.
        grades: (n,) uint8, an index into GRADES.
        splits: (n,) uint16, times a search had to divide a cell's candidates to prove the solution unique; 0 below hard.
    """

    inputs: Array
    solutions: Array
    grades: Array
    splits: Array

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, which: Array) -> Puzzles:
        """Return the puzzles of an index or mask."""
        return Puzzles(self.inputs[which], self.solutions[which], self.grades[which], self.splits[which])


def join(parts: list[Puzzles]) -> Puzzles:
    """Return all puzzles of several batches."""
    names = ("inputs", "solutions", "grades", "splits")
    return Puzzles(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def full_grids(n: int, box: int, rng: np.random.Generator) -> Array:
    """(n, cells) uint8 solved grids: guess in a cell with fewest candidates and propagate; begin anew on a contradiction."""
    side = box * box
    done = np.zeros((n, side**2), dtype=np.uint8)
    blank = candidates_of(np.zeros((1, side**2), dtype=np.uint8))
    left = np.arange(n)
    c = np.repeat(blank, n, axis=2)
    while len(left):
        c = _guess(c, rng)
        c, status = propagate(c)
        solved = status == SOLVED
        done[left[solved]] = grids_of(c[:, :, solved])
        # Beginning anew is cheaper than going back, since few grids come to a contradiction.
        c[:, :, status == IMPOSSIBLE] = blank
        c, left = np.ascontiguousarray(c[:, :, ~solved]), left[~solved]
    return done


def _guess(c: Array, rng: np.random.Generator) -> Array:
    """Give each grid's cell with fewest candidates (among equals the first) one of them at random."""
    n = c.shape[2]
    flat = c.reshape(-1, n).copy()
    cell, each = fewest(c), np.arange(n)
    value = flat[cell, each]
    # The digit whose random key is highest among the candidates.
    side = len(c)
    keys = rng.random((side, n))
    possible = (value[None] >> np.arange(side, dtype=np.uint16)[:, None]) & _ONE
    flat[cell, each] = _ONE << np.where(possible == 1, keys, -1.0).argmax(axis=0).astype(np.uint16)
    return flat.reshape(c.shape)


def dig(solutions: Array, grade: int, clues: Array, rng: np.random.Generator) -> Array:
    """Take clues away in random order while the puzzle can still be solved as its grade allows.

    Args:
        solutions: (n, cells) full grids.
        grade: 0: single candidates must suffice, 1: single places may help, 2: one solution, however it is found.
        clues: (n,) clues at which a puzzle is left as it is; 0: take away all that can be.
        rng: draws the order.

    Returns:
        (n, cells) uint8 puzzles.
    """
    n, cells = solutions.shape
    order = rng.random((n, cells)).argsort(axis=1)
    puzzles, left = solutions.copy(), np.full(n, cells)
    for k in range(cells):
        at = np.flatnonzero(left > clues)
        if not len(at):
            break
        cell = order[at, k]
        fewer = puzzles[at]
        fewer[np.arange(len(at)), cell] = 0
        good = at[_still_fine(fewer, cell, solutions[at, cell], grade)]
        puzzles[good, order[good, k]] = 0
        left[good] -= 1
    return puzzles


def _still_fine(puzzles: Array, cell: Array, digit: Array, grade: int) -> Array:
    """Return (n,) whether puzzles that have just lost `digit` in `cell`, and were fine with it, are still."""
    c = candidates_of(puzzles)
    if grade < 2:
        return propagate(c, places=grade == 1)[1] == SOLVED
    # Another solution would have another digit there: is there any?
    each = np.arange(len(cell))
    c.reshape(-1, len(cell))[cell, each] &= ~(_ONE << (digit.astype(np.uint16) - _ONE))
    return search(c, limit=1).count == 0


def make_batch(box: int, grade: int, seed: int, number: int, size: int) -> Puzzles:
    """Batch `number` of a seed: of `size` tries, the puzzles that came out with this grade. At most `size` of them.

    9x9 puzzles are minimal: no clue can go. There are too few different minimal 4x4 puzzles, so these keep a random
    number of clues.
    """
    # Kinds of puzzles with one seed have nothing in common.
    key = np.array([(seed << 8 | box << 4 | grade) & (2**64 - 1), number], dtype=np.uint64)
    rng = np.random.Generator(np.random.Philox(key=key))
    solutions = full_grids(size, box, rng)
    clues = np.zeros(size, dtype=np.int64) if box == 3 else rng.integers(4, 12, size)
    inputs = dig(solutions, grade, clues, rng)
    found = grades_of(inputs)
    keep = found == grade
    splits = np.zeros(size, dtype=np.uint16)
    if grade == 2 and keep.any():
        splits[keep] = np.minimum(solve_grids(inputs[keep]).splits, 2**16 - 1)
    return Puzzles(inputs, solutions, found, splits).take(keep)


_ROUNDS = 4  # of colour refinement: after four, cells have heard of every other cell twice over
_KEYS_AT_ONCE = 512  # puzzles: what is computed of them stays in a core's own cache


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
        """Return (n, cells) grids, or puzzles, as each one's symmetry makes them."""
        return np.asarray(np.take_along_axis(self.digits, np.take_along_axis(grids, self.cells, 1), 1))


def draw_symmetries(cells: int, seed: int, epochs: Array, puzzles: Array) -> Symmetry:
    """Return (n,) symmetries, each a function of the seed, its epoch and its puzzle's index alone; all equally likely."""
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
    """Return (n,) uint64, the same for all symmetries of a puzzle; other puzzles nearly always have another.

    Every cell, row, column, box, band, stack and digit has a colour, at first whether a clue stands there, and takes
    up the colours of what it belongs to or holds, a few times (colour refinement). Colours are joined by sums,
    which no order changes, and rows play the same part as columns, so no symmetry changes the sum of all.
    """
    parts = [slice(at, at + _KEYS_AT_ONCE) for at in range(0, max(1, len(inputs)), _KEYS_AT_ONCE)]
    return np.concatenate([_keys(inputs[part], solutions[part]) for part in parts])


def _keys(inputs: Array, solutions: Array) -> Array:
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
