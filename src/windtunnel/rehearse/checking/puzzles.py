"""Generated puzzles: each has exactly one solution, the one that is trained on, and none is in both splits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from windtunnel.recipe import SudokuCorpus

from .context import Context
from .types import Check, Evidence, Findings, Say

if TYPE_CHECKING:
    from windtunnel.data import Puzzles

MOST = 2_000
"""Puzzles of a split that are solved again."""
WHOLE = 64
"""Tries at puzzles of the whole recipe's size and grade that are made for the check."""


def _has_puzzles(context: Context) -> bool:
    return context.has_puzzles


def puzzles(context: Context, say: Say) -> Evidence:
    """Solve puzzles of the scale model and of the recipe's own size again; compare the splits up to symmetries."""
    from windtunnel.data import GRADES, PuzzleFile, make_batch

    found = Findings()
    train, validation = context.prepared.train, context.prepared.validation
    assert isinstance(train, PuzzleFile)
    assert isinstance(validation, PuzzleFile)
    say("solving the scale model's puzzles again")
    solved = sum(_judge(found, name, split.content) for name, split in (("training", train), ("held-out", validation)))
    shared = _shared(train.content, validation.content)
    if shared:
        what = f"{shared:,} of {validation.puzzles:,} held-out puzzles are symmetries of training puzzles"
        found.problem(f"{what}: accuracy on them would be memory", "report this: the package is at fault")
    corpus = context.recipe.data.corpus
    assert isinstance(corpus, SudokuCorpus)
    say("a few of the whole recipe's")
    whole = make_batch(corpus.box, GRADES.index(corpus.grade), context.seed, 0, WHOLE)
    solved += _judge(found, f"{corpus.box**2}x{corpus.box**2}", whole)
    blanks = float((whole.inputs == 0).mean()) if len(whole) else 0.0
    text = (
        f"{solved:,} puzzles solved again, each with one solution and the one it is trained on; none of {validation.puzzles:,} "
        f"held-out ones is a symmetry of a training puzzle; {blanks:.0%} of the whole recipe's cells are blank"
    )
    return found.evidence(text, {"solved": solved, "held_out": validation.puzzles, "shared": shared, "blank": blanks})


def _judge(found: Findings, name: str, given: Puzzles) -> int:
    """Solve the first of them again; how many."""
    from windtunnel.data import grades_of, solve_grids

    given = given.take(np.arange(min(MOST, len(given))))
    solved = solve_grids(given.inputs)
    fix = "report this: the package is at fault"
    more, none = int((solved.count > 1).sum()), int((solved.count < 1).sum())
    if more or none:
        found.problem(f"{name}: of {len(given):,} puzzles {more:,} have several solutions, {none:,} have none", fix)
    wrong = int(((solved.grids != given.solutions).any(axis=1) & (solved.count == 1)).sum())
    if wrong:
        found.problem(f"{name}: {wrong:,} of {len(given):,} puzzles are trained on another solution than theirs", fix)
    graded = int((grades_of(given.inputs) != given.grades).sum())
    if graded:
        found.problem(f"{name}: {graded:,} of {len(given):,} puzzles have another grade than they say", fix)
    return len(given)


def _shared(train: Puzzles, held_out: Puzzles) -> int:
    """Held-out puzzles that are symmetries of training puzzles."""
    from windtunnel.data import symmetry_key

    keys = symmetry_key(train.inputs, train.solutions)
    return int(np.isin(symmetry_key(held_out.inputs, held_out.solutions), keys).sum())


CHECKS = (
    Check(
        "puzzles", "every puzzle has one solution, the one it is trained on; no held-out puzzle is in training, turned or not",
        "look at data.corpus", puzzles, shows="end", needs=("recipe", "data"), applies=_has_puzzles, limit=180.0,
    ),
)  # fmt: skip
