"""Generated Sudoku: one solution, the right grade, the same puzzles everywhere, no symmetry across the splits."""

from __future__ import annotations

import zlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.data import GRADES, BatchLoader, PuzzleFile, Puzzles, ValidationBatches, make_batch, prepare
from windtunnel.data.children import in_processes
from windtunnel.data.sudoku_file import make_puzzles
from windtunnel.data.sudoku_make import draw_symmetries, full_grids, symmetry_key
from windtunnel.data.sudoku_solve import grades_of, solve_grids
from windtunnel.recipe import SudokuCorpus, UserError, load_recipe

HARD = make_batch(3, 2, 7, 0, 48)


def slow_count(grid: list[int], limit: int = 2) -> int:
    """Solutions by plain backtracking, cell by cell: independent of the solver under test."""
    side = round(len(grid) ** 0.5)
    box = round(side**0.5)
    best: tuple[int, list[int]] | None = None
    for cell, digit in enumerate(grid):
        if digit:
            continue
        r, c = divmod(cell, side)
        seen = {grid[r * side + j] for j in range(side)} | {grid[i * side + c] for i in range(side)}
        top, left = r // box * box, c // box * box
        seen |= {grid[(top + i) * side + left + j] for i in range(box) for j in range(box)}
        options = [d for d in range(1, side + 1) if d not in seen]
        if best is None or len(options) < len(best[1]):
            best = (cell, options)
    if best is None:
        return 1
    found = 0
    for digit in best[1]:
        found += slow_count([*grid[: best[0]], digit, *grid[best[0] + 1 :]], limit - found)
        if found >= limit:
            break
    return found


def valid(solutions: np.ndarray) -> bool:
    side = round(solutions.shape[1] ** 0.5)
    box = round(side**0.5)
    grids = solutions.reshape(-1, side, side)
    boxes = grids.reshape(-1, box, box, box, box).transpose(0, 1, 3, 2, 4).reshape(-1, side, side)
    return all((np.sort(units, axis=2) == np.arange(1, side + 1)).all() for units in (grids, grids.transpose(0, 2, 1), boxes))


@pytest.mark.parametrize(("box", "grade"), [(3, 0), (3, 1), (3, 2), (2, 0)])
def test_every_puzzle_has_the_solution_and_grade_it_is_said_to_have(box: int, grade: int) -> None:
    made = HARD if grade == 2 else make_batch(box, grade, 7, 0, 32)
    assert len(made) > 10
    assert valid(made.solutions)
    assert ((made.inputs == 0) | (made.inputs == made.solutions)).all()
    assert (made.grades == grade).all()
    assert (grades_of(made.inputs) == grade).all()
    assert ((made.splits > 0) == (grade == 2)).all()
    for puzzle in made.inputs[:12].tolist():
        assert slow_count(puzzle) == 1


@pytest.mark.parametrize(("grade", "content"), [(0, 2606898093), (1, 2124591115), (2, 4030474609)])
def test_a_seed_makes_the_puzzles_that_it_always_made(grade: int, content: int) -> None:
    batch = make_batch(3, grade, seed=1337, number=5, size=64)
    assert zlib.crc32(b"".join(part.tobytes() for part in (batch.inputs, batch.solutions, batch.splits))) == content


def test_hard_puzzles_are_minimal() -> None:
    for puzzle in HARD.inputs[:4]:
        clues = np.flatnonzero(puzzle)
        fewer = np.repeat(puzzle[None], len(clues), axis=0)
        fewer[np.arange(len(clues)), clues] = 0
        assert (solve_grids(fewer).count == 2).all()


@given(st.lists(st.integers(0, 4), min_size=16, max_size=16))
@settings(max_examples=80, deadline=None)
def test_solutions_of_any_4x4_grid_are_counted_as_by_backtracking(grid: list[int]) -> None:
    array = np.array([grid], dtype=np.uint8)
    clues = [i for i, d in enumerate(grid) if d]
    clash = any(grid[i] == grid[j] and (i // 4 == j // 4 or i % 4 == j % 4 or (i // 8, i % 4 // 2) == (j // 8, j % 4 // 2))
                for i in clues for j in clues if i < j)  # fmt: skip
    found = solve_grids(array)
    assert found.count[0] == (0 if clash else slow_count(grid))
    if found.count[0]:
        assert valid(found.grids)
        assert ((array == 0) | (array == found.grids)).all()


def test_grids_without_a_solution_or_with_several() -> None:
    blank = np.zeros((1, 81), dtype=np.uint8)
    assert solve_grids(blank).count == 2
    twice = blank.copy()
    twice[0, [0, 8]] = 5
    assert solve_grids(twice).count == 0


def test_4x4_puzzles_are_all_easy_even_with_as_few_clues_as_can_be() -> None:
    from windtunnel.data.sudoku_make import dig

    rng = np.random.default_rng(3)
    puzzles = dig(full_grids(512, 2, rng), 2, np.zeros(512, dtype=np.int64), rng)
    assert (solve_grids(puzzles).count == 1).all()
    assert (grades_of(puzzles) == GRADES.index("easy")).all()


def test_the_same_puzzles_whatever_the_number_of_processes() -> None:
    one, two = (list(in_processes(partial(make_batch, 3, 0, 11, size=24), range(3), processes)) for processes in (1, 2))
    for (_, a), (_, b) in zip(one, two, strict=True):
        for name in ("inputs", "solutions", "grades", "splits"):
            assert (getattr(a, name) == getattr(b, name)).all()
    assert not np.array_equal(one[0][1].inputs[:10], one[1][1].inputs[:10])
    other = make_batch(3, 0, 12, 0, 24)
    assert not np.array_equal(one[0][1].inputs[:10], other.inputs[:10])


@given(st.integers(0, 2**40), st.integers(0, 1000), st.integers(0, 2**31))
@settings(max_examples=25, deadline=None)
def test_a_symmetry_keeps_solution_grade_and_key(seed: int, epoch: int, index: int) -> None:
    few = HARD.take(np.arange(6))
    symmetry = draw_symmetries(81, seed, np.full(6, epoch), index + np.arange(6))
    inputs, solutions = symmetry.apply(few.inputs), symmetry.apply(few.solutions)
    assert valid(solutions)
    found = solve_grids(inputs)
    assert (found.count == 1).all()
    assert (found.grids == solutions).all()
    assert (grades_of(inputs) == 2).all()
    assert (symmetry_key(inputs, solutions) == symmetry_key(few.inputs, few.solutions)).all()


def test_symmetries_are_drawn_from_seed_epoch_and_index_alone_and_are_spread_evenly() -> None:
    n = 4000
    all_at_once = draw_symmetries(16, 5, np.zeros(n, dtype=np.int64), np.arange(n))
    alone = draw_symmetries(16, 5, np.array([0]), np.array([17]))
    assert (all_at_once.cells[17] == alone.cells[0]).all()
    assert (all_at_once.digits[17] == alone.digits[0]).all()
    assert not np.array_equal(all_at_once.cells, draw_symmetries(16, 5, np.ones(n, dtype=np.int64), np.arange(n)).cells)
    # Each cell can come from each of the 16, and 1 can become each of the 4 digits.
    seen = np.bincount(all_at_once.cells[:, 3], minlength=16)
    assert (np.abs(seen - n / 16) < 5 * (n / 16) ** 0.5).all()
    assert (np.abs(np.bincount(all_at_once.digits[:, 1], minlength=5)[1:] - n / 4) < 5 * (n / 4) ** 0.5).all()
    assert (all_at_once.digits[:, 0] == 0).all()


def test_different_puzzles_have_different_keys() -> None:
    assert len(np.unique(symmetry_key(HARD.inputs, HARD.solutions))) == len(HARD)
    # One clue more is another puzzle.
    more = HARD.inputs.copy()
    blank = (more == 0).argmax(axis=1)
    each = np.arange(len(more))
    more[each, blank] = HARD.solutions[each, blank]
    assert not np.isin(symmetry_key(more, HARD.solutions), symmetry_key(HARD.inputs, HARD.solutions)).any()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def recipe_of(**corpus: object):
    settings = [f"data.corpus.{key}={value}" for key, value in {"box": 2, "grade": "easy", "puzzles": 600, **corpus}.items()]
    return load_recipe("trm-sudoku", [*settings, "model.sequence=16", "data.validation=0.1"])


def test_a_puzzle_has_its_key_among_however_many() -> None:
    many = HARD.take(np.arange(1100) % len(HARD))
    keys = symmetry_key(HARD.inputs, HARD.solutions)
    assert (symmetry_key(many.inputs, many.solutions) == np.resize(keys, 1100)).all()
    assert not len(symmetry_key(HARD.inputs[:0], HARD.solutions[:0]))


def test_prepared_puzzles_are_kept_checked_and_split_by_symmetry(cache: Path) -> None:
    data = prepare(recipe_of(), cache)
    assert isinstance(data.train, PuzzleFile)
    assert isinstance(data.validation, PuzzleFile)
    assert data.tokenizer.vocab == 5
    assert data.train.puzzles + data.validation.puzzles == 600
    assert data.train.count == data.train.puzzles * 16
    train, held = data.train.content, data.validation.content
    assert 30 < len(held) < 150
    assert not np.isin(symmetry_key(held.inputs, held.solutions), symmetry_key(train.inputs, train.solutions)).any()
    assert len(np.unique(np.concatenate([train.inputs, held.inputs]), axis=0)) == 600
    again = prepare(recipe_of(), cache)
    assert again.reused
    assert again.checksum == data.checksum
    with open(data.validation.path, "r+b") as file:
        file.seek(40)
        byte = file.read(1)
        file.seek(40)
        file.write(bytes([byte[0] ^ 1]))
    mended = prepare(recipe_of(), cache)
    assert not mended.reused
    assert mended.checksum == data.checksum


def test_grids_across_ranks_are_each_seen_once_an_epoch_under_fresh_symmetries(cache: Path) -> None:
    data = prepare(recipe_of(), cache)
    assert isinstance(data.train, PuzzleFile)
    n = data.train.puzzles

    def epoch(world: int, micro: int, position: int, steps: int) -> np.ndarray:
        out = []
        loaders = [
            BatchLoader(
                data.train, sequence=16, micro_batch=micro, accumulation=2, rank=r, world=world, seed=3, position=position
            )
            for r in range(world)
        ]
        for _ in range(steps):
            parts = [[loader.next_batch() for _ in range(2)] for loader in loaders]
            for a in range(2):
                for r in range(world):
                    x, y = parts[r][a]
                    assert x.shape == y.shape == (micro, 16)
                    assert ((x == 0) | (x == y)).all()
                    out.append(np.concatenate([x.numpy(), y.numpy()], axis=1))
        for loader in loaders:
            assert loader.position == position + steps * micro * 2 * world
            loader.close()
        return np.concatenate(out)

    steps = n // 8 + 1
    one, two = epoch(1, 4, 0, 2 * steps), epoch(2, 2, 0, 2 * steps)
    assert (one == two).all()
    assert (epoch(2, 2, 8 * 5, 4) == one[40:72]).all()  # resumed on other ranks
    keys = symmetry_key(one[:, :16].astype(np.uint8), one[:, 16:].astype(np.uint8))
    train = data.train.content
    expected = np.sort(symmetry_key(train.inputs, train.solutions))
    assert (np.sort(keys[:n]) == expected).all()
    assert (np.sort(keys[n : 2 * n]) == expected).all()
    assert not np.array_equal(np.unique(one[:n], axis=0), np.unique(one[n : 2 * n], axis=0))


def test_validation_shows_whole_puzzles_as_they_are(cache: Path) -> None:
    data = prepare(recipe_of(), cache)
    assert isinstance(data.validation, PuzzleFile)
    held = data.validation.content
    seen = []
    for rank in range(2):
        batches_ = ValidationBatches(data.validation, sequence=16, micro_batch=4, rank=rank, world=2, limit=16 * 10 + 1)
        assert batches_.targets == 11 * 16
        for x, y in batches_:
            there = (y >= 0).all(dim=1)
            assert (y[~there] == -1).all()
            seen += [tuple(row) for row in np.concatenate([x[there].numpy(), y[there].numpy()], axis=1).tolist()]
    expected = np.concatenate([held.inputs[:11], held.solutions[:11]], axis=1).tolist()
    assert sorted(seen) == sorted(map(tuple, expected))


def test_4x4_puzzles_of_another_grade_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.corpus\.grade") as caught:
        prepare(recipe_of(grade="hard"), tmp_path)
    assert "easy" in str(caught.value.fix)


def test_a_model_of_another_length_and_another_tokenizer_are_refused(cache: Path, tmp_path: Path) -> None:
    data = prepare(recipe_of(), cache)
    with pytest.raises(UserError, match="16 cells"):
        BatchLoader(data.train, sequence=81, micro_batch=1, accumulation=1, rank=0, world=1, seed=0)
    with pytest.raises(UserError, match="16 cells"):
        ValidationBatches(data.train, sequence=81, micro_batch=1)
    recipe = recipe_of()
    letters = recipe.data.tokenizer.model_copy(update={"alphabet": "abc"})
    with pytest.raises(UserError, match="a token for each digit"):
        prepare(recipe.model_copy(update={"data": recipe.data.model_copy(update={"tokenizer": letters})}), tmp_path)


def test_a_corpus_is_cut_to_its_size_and_has_no_puzzle_twice() -> None:
    made: Puzzles = make_puzzles(SudokuCorpus(box=2, grade="easy", puzzles=700), seed=2)
    assert len(made) == 700
    assert len(np.unique(made.inputs, axis=0)) == 700
