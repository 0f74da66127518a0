"""Prepared Sudoku: making and dividing the puzzles, their file, and how a loader reads them under fresh symmetries."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from windtunnel.recipe import CharacterTokenizer, Recipe, SudokuCorpus, UserError

from .children import in_processes
from .documents import Array
from .sudoku_make import GRADES, Puzzles, draw_symmetries, join, make_batch, symmetry_key
from .tokenizer import Characters
from .tokens import Draw, Short, TokenFile, file_checksum
from .write import Progress, Split, Written, cores

_EXTRA = 3  # bytes a puzzle behind the grids: its grade and, in two, its splits


@dataclass(frozen=True)
class PuzzleFile(TokenFile):
    """Puzzles in one file: all solutions, all inputs, all grades (uint8), all splits (uint16, little-endian).

    `count` counts the targets: every cell of every solution. `array` is the solutions one after the other.
    """

    cells: int = 81

    @property
    def bytes(self) -> int:
        """Return the bytes on the disk: of each puzzle inputs, solution and what is known of it."""
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
        """Return all puzzles, memory-mapped and read-only."""
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

        With `draw` each puzzle is shown under the symmetry drawn for it and its epoch, else as it is stored. `targets` is not
        needed: whoever counts them asks for whole puzzles.
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


_BATCHES = (512, 2048)  # puzzles tried at once: few for a few, so that the last batch is not mostly thrown away
# A batch that adds less than this share of its tries means that the puzzles are running out.
_WORTH = 0.002


def write_puzzles(recipe: Recipe, folder: Path, check_space: Callable[[int], None], report: Progress) -> Written:
    """Write train.bin, validation.bin and tokenizer.json into the folder.

    Raises:
        UserError: another tokenizer than characters, a grade or number of puzzles that 4x4 grids do not have.
    """
    corpus = recipe.data.corpus
    assert isinstance(corpus, SudokuCorpus)
    tokenizer = sudoku_tokenizer(recipe)
    _require_grade(corpus)
    cells = corpus.box**4
    check_space(corpus.puzzles * (2 * cells + 3))
    puzzles = make_puzzles(corpus, recipe.seed, lambda share: report(0.95 * share, f"making {corpus.grade} puzzles"))
    held_out = held_out_of(symmetry_key(puzzles.inputs, puzzles.solutions), recipe.data.validation)
    tokenizer.save(folder / "tokenizer.json")
    splits = {}
    for name, part in (("train", puzzles.take(~held_out)), ("validation", puzzles.take(held_out))):
        path = folder / f"{name}.bin"
        write_puzzle_file(path, part)
        targets = len(part) * cells
        splits[name] = Split(targets, len(part), targets, "uint8", file_checksum(path))
    return Written(tokenizer, splits, Counter(), [_note(puzzles, corpus)])


def sudoku_tokenizer(recipe: Recipe) -> Characters:
    """Return a token a digit; token 0, elsewhere the beginning of a text, is the blank. Raises UserError for any other."""
    corpus, wanted = recipe.data.corpus, recipe.data.tokenizer
    assert isinstance(corpus, SudokuCorpus)
    digits = "".join(str(d) for d in range(1, corpus.box**2 + 1))
    if not isinstance(wanted, CharacterTokenizer) or wanted.alphabet not in ("auto", digits):
        shown = wanted.kind if not isinstance(wanted, CharacterTokenizer) else f"character, alphabet {wanted.alphabet!r}"
        fix = "--set data.tokenizer.kind=character and leave data.tokenizer.alphabet out"
        raise UserError(f"data.tokenizer: {shown}; Sudoku has a token for each digit, {digits!r}", fix)
    return Characters(digits)


def _require_grade(corpus: SudokuCorpus) -> None:
    if corpus.box == 2 and corpus.grade != "easy":
        raise UserError(
            f"data.corpus.grade: {corpus.grade!r}, but every 4x4 puzzle with one solution is easy",
            "--set data.corpus.grade=easy, or --set data.corpus.box=3",
        )


def make_puzzles(corpus: SudokuCorpus, seed: int, progress: Callable[[float], None] = lambda share: None) -> Puzzles:
    """Return the corpus's puzzles, all different: whole batches in the order of their numbers, cut to the number wanted.

    The same ones whatever the number of cores.

    Raises:
        UserError: there are not as many different ones.
    """
    grade, size = GRADES.index(corpus.grade), _BATCHES[corpus.puzzles > _BATCHES[1]]
    # 4x4 puzzles are made faster than processes start.
    processes = 1 if corpus.box == 2 or corpus.puzzles <= size else cores()
    parts: list[Puzzles] = []
    seen: set[bytes] = set()

    def numbers() -> Iterator[int]:
        number = 0
        while len(seen) < corpus.puzzles:
            yield number
            number += 1

    work = partial(make_batch, corpus.box, grade, seed, size=size)
    with contextlib.closing(in_processes(work, numbers(), processes)) as made:
        for _, batch in made:
            new = _new(batch, seen)
            parts.append(batch.take(new))
            progress(min(1.0, len(seen) / corpus.puzzles))
            if len(seen) < corpus.puzzles and new.sum() < _WORTH * size:
                raise UserError(
                    f"data.corpus.puzzles: only about {len(seen):,} different {corpus.box**2}x{corpus.box**2} puzzles turned up",
                    f"--set data.corpus.puzzles={len(seen)}",
                )
    return join(parts).take(np.arange(corpus.puzzles))


def _new(batch: Puzzles, seen: set[bytes]) -> Array:
    """Return (n,) bool: puzzles not met before; adds them to `seen`."""
    new = np.zeros(len(batch), dtype=bool)
    for i, row in enumerate(batch.inputs):
        content = row.tobytes()
        new[i] = content not in seen
        seen.add(content)
    return new


def held_out_of(keys: Array, share: float) -> Array:
    """Return (n,) bool: the puzzles with the lowest keys, about this share of them and at least one; equal keys stay together.

    Raises:
        UserError: all keys are equal.
    """
    # Keys are equal for symmetries of one puzzle, which must not lie on both sides.
    values = np.sort(keys)
    threshold = values[min(len(keys) - 1, max(1, round(share * len(keys))) - 1)]
    held_out = np.asarray(keys <= threshold)
    if held_out.all():
        raise UserError("data.corpus.puzzles: all puzzles are symmetries of one", "raise data.corpus.puzzles")
    return held_out


def _note(puzzles: Puzzles, corpus: SudokuCorpus) -> str:
    clues = float((puzzles.inputs > 0).sum(axis=1).mean())
    text = f"{len(puzzles):,} {corpus.grade} puzzles, {clues:.1f} clues on average"
    if corpus.grade == "hard":
        low, middle, high = np.percentile(puzzles.splits, [10, 50, 90])
        text += f", {middle:.0f} guesses to prove one solution ({low:.0f} to {high:.0f} in the middle 80 %)"
    return text
