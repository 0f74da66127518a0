"""Check that what is held out is held out, and that generated data is right: sums and puzzles are solved again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from windtunnel.check import Check, CheckFailed, Context, Evidence, Findings, Say
from windtunnel.recipe import ArithmeticCorpus, SudokuCorpus

from .checks import has_tokens, whole_or_scaled
from .documents import Array
from .windows import hash_parts

if TYPE_CHECKING:
    from windtunnel.data import Puzzles


# Overlap of two splits: hashes of documents and of windows of tokens.

WINDOW_BYTES = 64  # a sentence: shorter windows meet by chance, longer ones miss copies that were edited
LEAST_WINDOW, MOST_WINDOW = 8, 64
LEAST_KEPT = 4  # documents of fewer such windows are too short to be judged by parts
COPIED_PARTS = 0.8  # a document with so much of it in the other split counts as a copy


@dataclass(frozen=True)
class Overlap:
    """Held-out documents and how many of them training has seen.

    Attributes:
        documents: held out. same: those that are in training as they are. judged: long enough to be compared by
            windows. copied: those of which most stands in training. examples: tokens (first, last) of some, same first.
    """

    documents: int
    same: int
    judged: int
    copied: int
    examples: tuple[tuple[int, int], ...]


def overlap(train: Array, validation: Array, bos: int, bytes_per_token: float) -> Overlap:
    """Compare two splits (tokens, each document behind BOS). Takes about a second for 30 M tokens."""
    window = int(min(MOST_WINDOW, max(LEAST_WINDOW, round(WINDOW_BYTES / max(bytes_per_token, 0.1)))))
    held = list(hash_parts(validation, bos, window))
    documents = np.concatenate([piece.documents for piece in held])
    starts = np.concatenate([piece.starts for piece in held])
    ends = np.concatenate([piece.ends for piece in held])
    windows = np.concatenate([piece.windows for piece in held])
    offset = np.cumsum([0, *(len(piece.documents) for piece in held[:-1])])
    owner = np.concatenate([piece.owner + base for piece, base in zip(held, offset, strict=True)])
    wanted, wanted_windows = np.unique(documents), np.unique(windows)
    seen, seen_windows = np.zeros(len(wanted), dtype=bool), np.zeros(len(wanted_windows), dtype=bool)
    for piece in hash_parts(train, bos, window):
        seen |= np.isin(wanted, piece.documents)
        seen_windows |= np.isin(wanted_windows, piece.windows)
    same = seen[np.searchsorted(wanted, documents)]
    known = seen_windows[np.searchsorted(wanted_windows, windows)] if len(windows) else np.zeros(0, dtype=bool)
    kept = np.bincount(owner, minlength=len(documents))
    found = np.bincount(owner, weights=known, minlength=len(documents))
    judged = kept >= LEAST_KEPT
    copied = judged & (found >= COPIED_PARTS * kept) & ~same
    # The first shown is a whole copy and the last a near one, where there are both.
    order = [*np.flatnonzero(same)[:3], *np.flatnonzero(copied)[:3]]
    examples = tuple((int(starts[i]), int(ends[i])) for i in order)
    return Overlap(len(documents), int(same.sum()), int(judged.sum()), int(copied.sum()), examples)


# No validation document is in training, neither whole nor in large parts.

MOST_TRAIN, MOST_HELD_OUT = 32_000_000, 4_000_000  # tokens: a few seconds, and copies are seldom only at the end
SAME, COPIED, MOSTLY_COPIED = 0.01, 0.02, 0.2  # share of held-out documents: 1 % is repeated in most text from the web


def splits(context: Context, say: Say) -> Evidence:
    """Compare the splits by hashes of documents and of windows of about 64 bytes."""
    prepared, found = whole_or_scaled(context), Findings()
    say("comparing the splits")
    train, held = prepared.train.array[:MOST_TRAIN], prepared.validation.array[:MOST_HELD_OUT]
    seen = overlap(train, held, prepared.tokenizer.bos, prepared.bytes_per_token)

    def example(index: int) -> str:
        first, last = seen.examples[index]
        return repr(prepared.tokenizer.decode(held[first : min(last, first + 80)])[:60])

    if seen.same:
        what = f"{seen.same:,} of {seen.documents:,} held-out documents are in training too, such as {example(0)}"
        if seen.same > SAME * seen.documents:
            found.problem(what, "remove repetitions; with data.tokenizer.unknown=skip texts may become the same", shows="end")
        else:
            found.warn(f"{what}: remove repetitions")
    if seen.copied > COPIED * seen.judged:
        share = seen.copied / seen.judged
        what = f"{share:.0%} of {seen.judged:,} held-out documents are near copies of training documents, such as {example(-1)}"
        if share > MOSTLY_COPIED:
            found.problem(what, "remove near copies before training: the validation loss would not show overfitting", shows="end")
        else:
            found.warn(f"{what}: remove near copies, the validation loss will look too good")
    text = f"{seen.documents:,} held-out documents, none of them in training"
    if seen.judged:
        text += f"; {seen.copied:,} of {seen.judged:,} long enough to tell are near copies"
    facts = {"held_out": seen.documents, "same": seen.same, "judged": seen.judged, "near_copies": seen.copied}
    return found.evidence(text, facts, blocks=False)  # a leak spoils the measure, not the training


# Puzzles: each has exactly one solution, the one that is trained on; none is in both splits.

MOST = 2_000  # puzzles of a split that are solved again
WHOLE = 64  # tries at puzzles of the whole recipe's size and grade that are made for the check


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
    from .sudoku_solve import grades_of, solve_grids

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
    from .sudoku_make import symmetry_key

    keys = symmetry_key(train.inputs, train.solutions)
    return int(np.isin(symmetry_key(held_out.inputs, held_out.solutions), keys).sum())


# Sums: answers are right, questions differ, no answer dominates.

LOOKED_AT = 5_000
FEWEST_QUESTIONS = 0.5  # share of the sums that must differ
UNBALANCED = 0.5


def _has_answers(context: Context) -> bool:
    return isinstance(context.recipe.data.corpus, ArithmeticCorpus)


def answers(context: Context, say: Say) -> Evidence:
    """Solve the first 5,000 sums again, exactly."""
    from windtunnel.data import solve

    from .arithmetic import parse_problem
    from .survey import sample_documents

    batch = next(iter(sample_documents(context.recipe, 1)))
    questions: set[str] = set()
    given: Counter[str] = Counter()
    number = min(LOOKED_AT, len(batch))
    for i in range(number):
        text = batch.document(i)
        problem = parse_problem(text)
        if solve(problem.prompt[1:-1]) != problem.answer:
            raise CheckFailed(
                f"{text!r}: the answer should be {solve(problem.prompt[1:-1])}", "report this: the package is at fault"
            )
        questions.add(problem.prompt)
        given[problem.answer] += 1
    found = Findings()
    answer, times = given.most_common(1)[0]
    if len(questions) < FEWEST_QUESTIONS * number:
        what = f"{number:,} sums have only {len(questions):,} different questions: the model can learn them by heart"
        found.warn(f"{what}; raise data.corpus.digits or terms")
    if times > UNBALANCED * number:
        found.warn(f"{times / number:.0%} of the answers are {answer}: always saying so scores as much")
    common = f"the most common answer is {answer} ({times / number:.1%})"
    text = f"{number:,} sums solved again: all right; {len(questions):,} different questions, {common}"
    return found.evidence(text, {"sums": number, "distinct_questions": len(questions), "majority": times / number})


CHECKS = (
    Check(
        "data-splits", "no held-out document is in training, neither whole nor nearly", "look at data.corpus for repetitions",
        splits, shows="end", needs=("recipe", "data"), applies=has_tokens, limit=120.0,
    ),
    Check(
        "puzzles", "every puzzle has one solution, the one it is trained on; no held-out puzzle is in training, turned or not",
        "look at data.corpus", puzzles, shows="end", needs=("recipe", "data"), applies=attrgetter("has_puzzles"), limit=180.0,
    ),
    Check(
        "data-answers", "answers are right, questions differ, no answer dominates", "look at data.corpus", answers,
        shows="end", needs=("recipe", "data"), applies=_has_answers,
    ),
)  # fmt: skip
