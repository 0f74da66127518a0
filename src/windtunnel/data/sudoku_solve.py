"""Solves many Sudoku at once: candidates as bit masks, constraint propagation over the whole batch, then search.

Candidates are (side, side, n) uint16, bit d-1 of a cell set while digit d is possible there; the puzzles lie along the
last axis so that every operation runs over contiguous memory. Grids are (n, cells) uint8 in row order, 0 for a blank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .documents import Array

STALLED, SOLVED, IMPOSSIBLE = 0, 1, 2
AT_ONCE = 2048  # so many fit, with what a sweep makes of them, into a core's own cache
_BITS = np.array([bin(i).count("1") for i in range(1 << 9)], dtype=np.uint8)
_ONE = np.uint16(1)


@dataclass(frozen=True)
class Solutions:
    """What a search found for n puzzles.

    Attributes:
        count: (n,) solutions, counted up to the limit.
        grids: (n, cells) uint8, one of them; zeros where there is none.
        splits: (n,) int32, times a cell's candidates had to be divided in two and both halves followed.
    """

    count: Array
    grids: Array
    splits: Array


def side_of(cells: int) -> int:
    """9 for 81 cells, 4 for 16."""
    side = round(cells**0.5)
    assert side * side == cells
    assert side in (4, 9)
    return side


def candidates_of(grids: Array) -> Array:
    """(n, cells) grids -> (side, side, n) candidates: one bit where a digit is given, all bits where none is."""
    n, cells = grids.shape
    side = side_of(cells)
    table = np.array([(1 << side) - 1, *(1 << d for d in range(side))], dtype=np.uint16)
    return np.ascontiguousarray(table[grids].T).reshape(side, side, n)


def grids_of(candidates: Array) -> Array:
    """(side, side, n) candidates -> (n, cells) grids; 0 where more or fewer than one digit is possible."""
    side = len(candidates)
    table = np.zeros(1 << side, dtype=np.uint8)
    table[1 << np.arange(side)] = np.arange(1, side + 1)
    return np.ascontiguousarray(table[candidates].reshape(side * side, -1).T)


def propagate(candidates: Array, places: bool = True) -> tuple[Array, Array]:
    """Repeat the two rules until nothing changes.

    Single candidates: a cell's only digit leaves the other cells of its row, column and box. Single places: a digit
    with one place left in a row, column or box goes there.

    Args:
        candidates: (side, side, n).
        places: also look for single places.

    Returns:
        (side, side, n) candidates afterwards, none where it is impossible, and (n,) uint8 STALLED, SOLVED or IMPOSSIBLE.
    """
    n = candidates.shape[2]
    out, status = np.zeros_like(candidates), np.zeros(n, dtype=np.uint8)
    working, who = candidates, np.arange(n)
    while len(who):
        new, wrong = _sweep(working, places)
        done = wrong | (new == working).all(axis=(0, 1))
        working = new
        if np.count_nonzero(done) * 8 >= len(who):  # copying them out costs about as much as a sweep
            status[who[wrong]] = IMPOSSIBLE
            rest, left = np.flatnonzero(done & ~wrong), np.flatnonzero(~done)
            at_rest = working.take(rest, axis=2)
            out[:, :, who[rest]], status[who[rest]] = at_rest, _judge(at_rest)
            working, who = working.take(left, axis=2), who[left]
    return out, status


def _sweep(c: Array, places: bool) -> tuple[Array, Array]:
    """Both rules once. Returns new candidates and (n,) whether a contradiction was met."""
    side, n = len(c), c.shape[2]
    box = round(side**0.5)
    single = _all_bits((c & (c - _ONE)) == 0)
    known = c & single
    rows = np.bitwise_or.reduce(known, axis=1)
    columns = np.bitwise_or.reduce(known, axis=0)
    boxes = np.bitwise_or.reduce(np.bitwise_or.reduce(known.reshape(box, box, box, box, n), axis=3), axis=1)
    used = rows[:, None] | columns[None]
    used.reshape(box, box, box, box, n)[...] |= boxes[:, None, :, None]
    new = c & (~used | single)
    if not places:
        return new, (new == 0).any(axis=(0, 1))
    full = np.uint16((1 << side) - 1)
    blocks = new.reshape(box, box, box, box, n)
    in_rows, wrong = _places([new[:, j] for j in range(side)], full)
    in_columns, wrong_column = _places([new[i] for i in range(side)], full)
    in_boxes, wrong_box = _places([blocks[:, i, :, j] for i in range(box) for j in range(box)], full)
    hidden = in_rows[:, None] | in_columns[None]
    hidden.reshape(box, box, box, box, n)[...] |= in_boxes[:, None, :, None]
    hidden &= new
    # This cell is the only place of two digits.
    two = np.bitwise_or.reduce((hidden & (hidden - _ONE)).reshape(side**2, n), axis=0) != 0
    return hidden | (new & _all_bits(hidden == 0)), wrong | wrong_column | wrong_box | two


def _all_bits(where: Array) -> Array:
    """Return all bits where it holds and none elsewhere: choosing by them is many times as fast as by `np.where`."""
    return np.asarray(-where.astype(np.uint16))


def _places(cells: list[Array], full: np.uint16) -> tuple[Array, Array]:
    """Find the digits with a single place in each row (or column, or box), and which grids have one without any (n,)."""
    once, twice = cells[0].copy(), np.zeros_like(cells[0])
    for cell in cells[1:]:
        twice |= once & cell
        once |= cell
    return once & ~twice, np.bitwise_and.reduce(once.reshape(-1, once.shape[-1]), axis=0) != full


def _judge(c: Array) -> Array:
    """Return (n,) status of candidates at rest: a grid without choice is solved if every row, column and box has all digits."""
    side, n = len(c), c.shape[2]
    box = round(side**0.5)
    full = np.uint16((1 << side) - 1)
    single = ((c & (c - _ONE)) == 0).all(axis=(0, 1))
    boxes = np.bitwise_or.reduce(np.bitwise_or.reduce(c.reshape(box, box, box, box, n), axis=3), axis=1).reshape(side, n)
    units = [np.bitwise_or.reduce(c, axis=0), np.bitwise_or.reduce(c, axis=1), boxes]
    possible = (c != 0).all(axis=(0, 1))
    for unit in units:
        possible &= (unit == full).all(axis=0)
    return np.where(possible, np.where(single, SOLVED, STALLED), IMPOSSIBLE).astype(np.uint8)


def search(candidates: Array, limit: int) -> Solutions:
    """Solutions of each of n puzzles, at most `limit` counted.

    Depth first over all puzzles together: where propagation stalls, the first of the cells with fewest candidates is
    divided into its lowest digit and the others. Each puzzle's tree is the same whatever it is solved with.
    """
    side, n = len(candidates), candidates.shape[2]
    count = np.zeros(n, dtype=np.int32)
    splits = np.zeros(n, dtype=np.int32)
    grids = np.zeros((n, side * side), dtype=np.uint8)
    pool = [(candidates, np.arange(n))]
    while pool:
        c, owner = _take(pool)
        wanted = count[owner] < limit
        if not wanted.all():
            c, owner = np.ascontiguousarray(c[:, :, wanted]), owner[wanted]
        c, status = propagate(c)
        solved, open_ = status == SOLVED, status == STALLED
        np.add.at(count, owner[solved], 1)
        grids[owner[solved]] = grids_of(c[:, :, solved])
        if open_.any():
            c, owner = np.ascontiguousarray(c[:, :, open_]), owner[open_]
            np.add.at(splits, owner, 1)
            low, rest = _divide(c)
            pool.append((np.concatenate([rest, low], axis=2), np.concatenate([owner, owner])))
    return Solutions(np.minimum(count, limit), grids, splits)


def _take(pool: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Candidates from the top of the stack, about AT_ONCE of them: the newest first, so that the stack stays small."""
    parts, total = [], 0
    while pool and total < AT_ONCE:
        c, owner = pool.pop()
        room = AT_ONCE - total
        if len(owner) > room:
            pool.append((c[:, :, :-room], owner[:-room]))
            c, owner = c[:, :, -room:], owner[-room:]  # the rest waits on the stack
        parts.append((c, owner))
        total += len(owner)
    if len(parts) == 1:
        return np.ascontiguousarray(parts[0][0]), parts[0][1]
    return np.concatenate([c for c, _ in parts], axis=2), np.concatenate([owner for _, owner in parts])


def fewest(c: Array) -> Array:
    """Return (n,) the first cell with fewest candidates among those with a choice."""
    bits = _BITS[c].reshape(len(c) ** 2, -1)
    return np.asarray(np.where(bits > 1, bits, 99).argmin(axis=0))


def _divide(c: Array) -> tuple[Array, Array]:
    n = c.shape[2]
    low = c.reshape(-1, n).copy()
    rest = low.copy()
    cell, each = fewest(c), np.arange(n)
    value = low[cell, each]
    first = value & (~value + _ONE)  # the lowest bit
    low[cell, each] = first
    rest[cell, each] = value & ~first
    return low.reshape(c.shape), rest.reshape(c.shape)


def solve_grids(grids: Array) -> Solutions:
    """Solve (n, cells) grids; 0 is a blank. Solutions are counted up to 2, which tells unique from not."""
    return search(candidates_of(grids), limit=2)


def grades_of(grids: Array) -> Array:
    """Return (n,) uint8: 0 easy (single candidates suffice), 1 medium (single places too), 2 hard, or no solution at all."""
    c = candidates_of(grids)
    easy = propagate(c, places=False)[1] == SOLVED
    medium = propagate(c)[1] == SOLVED
    return np.where(easy, 0, np.where(medium, 1, 2)).astype(np.uint8)
