"""Puzzles solved exactly: by grade, by supervision step, with more steps than trained, and as the halting head decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from windtunnel.data import GRADES, PreparedData, PuzzleFile, Puzzles, make_batch
from windtunnel.model import GPT

from .match import wilson

# Grades that the run's corpus lacks are made on the spot: their grade alone keeps them apart from all it was trained on.
OTHER_GRADES, OTHER_SEED = 256, 103
AT_ONCE = 256  # puzzles solved together
_GUESSES = ((1, 1), (2, 3), (4, 7), (8, 2**16))  # classes of hard puzzles: each takes about twice the guesses of the one before


@dataclass(frozen=True)
class Share:
    """right of n; low and high bound the share with 95 % confidence (Wilson)."""

    right: int
    n: int

    @property
    def value(self) -> float:
        """Return right / n."""
        return self.right / self.n

    def to_json(self) -> dict[str, Any]:
        """Return the share with its interval."""
        low, high = wilson(self.right, self.n)
        return {"share": self.value, "right": self.right, "n": self.n, "low": low, "high": high}

    def __str__(self) -> str:
        low, high = wilson(self.right, self.n)
        return f"{self.value:.1%} ({self.right:,} of {self.n:,}; {low:.1%} to {high:.1%})"


@dataclass(frozen=True)
class Solved:
    """Puzzles of one kind.

    Attributes:
        kind: a grade, or a grade and how many guesses a search needs.
        held_out: of the run's own validation split; else made on the spot.
        exact: wholly right after each supervision step, more of them than were trained included.
        cells: share of the blank cells that are right after each supervision step.
    """

    kind: str
    held_out: bool
    exact: tuple[Share, ...]
    cells: tuple[float, ...]

    def to_json(self, used: int) -> dict[str, Any]:
        """After the steps that are used, and after every step."""
        return {
            "kind": self.kind,
            "held_out": self.held_out,
            "exact": self.exact[used - 1].to_json(),
            "cells": self.cells[used - 1],
            "exact_by_step": [share.value for share in self.exact],
            "cells_by_step": list(self.cells),
        }


@dataclass(frozen=True)
class Halting:
    """What the halting head is worth on the held-out puzzles of the corpus's grade.

    Attributes:
        told: after each step of each puzzle that is used, was it right about the answer being right?
        exact: wholly right where it first says so, or after the last of these steps.
        steps: mean supervision steps until then.
    """

    told: Share
    exact: Share
    steps: float

    def to_json(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        return {"told": self.told.to_json(), "exact": self.exact.to_json(), "steps": self.steps}


@dataclass(frozen=True)
class PuzzleReport:
    """How well puzzles are solved.

    Attributes:
        trained: supervision steps in training; 1 of a plain model.
        used: those that count: as many as trained unless others were asked for.
        solved: the first is the corpus's own grade, held out.
        halting: None without a halting head.
    """

    trained: int
    used: int
    solved: tuple[Solved, ...]
    halting: Halting | None

    @property
    def exact(self) -> Share:
        """Held-out puzzles of the corpus's own grade, after the steps that are used."""
        return self.solved[0].exact[self.used - 1]

    def to_json(self) -> dict[str, Any]:
        """Stable keys."""
        return {
            "supervision": {"trained": self.trained, "used": self.used},
            "exact": self.exact.to_json(),
            "kinds": [kind.to_json(self.used) for kind in self.solved],
            "halting": None if self.halting is None else self.halting.to_json(),
        }

    def rows(self) -> list[tuple[str, str]]:
        """Return (name, value) to be printed."""
        rows = []
        for kind in self.solved:
            where = "" if kind.held_out else " (made on the spot)"
            rows.append((f"solved, {kind.kind}{where}", str(kind.exact[self.used - 1])))
        first = self.solved[0]
        rows.append(("blank cells right", f"{first.cells[self.used - 1]:.2%}"))
        if len(first.exact) > 1:
            shown = {i for i in (1, 2, 4, 8, 16, 32, 64, self.trained, self.used, len(first.exact)) if i <= len(first.exact)}
            text = ", ".join(f"{i}: {first.exact[i - 1].value:.1%}" for i in sorted(shown))
            rows.append(("solved by supervision step", f"{text} (trained {self.trained}, used {self.used})"))
        if self.halting is not None:
            rows.append(("halting head right", str(self.halting.told)))
            rows.append(("solved when it halts", f"{self.halting.exact}, {self.halting.steps:.2f} steps on average"))
        return rows


def puzzle_report(
    model: GPT, data: PreparedData, *, most: int, supervision: int | None = None, others: int = OTHER_GRADES
) -> PuzzleReport:
    """Solve held-out puzzles, `most` of them, and some of each other grade: of `others` that are tried for, fewer come out.

    `supervision` steps count, or as many as the model uses by itself; twice as many are taken and reported.
    """
    assert isinstance(data.validation, PuzzleFile)
    box = round(data.validation.cells**0.25)
    several, trained = model.shape.supervision > 0, max(1, model.shape.supervision)
    used = supervision or int(getattr(model, "supervision", trained)) if several else 1
    # Twice as many, to see whether more steps than it was trained with help.
    steps = 2 * max(used, trained) if several else 1
    held_out = data.validation.content.take(np.arange(min(most, data.validation.puzzles)))
    own = int(held_out.grades[0])
    right, halting = _answers(model, held_out, steps)
    blank = held_out.inputs == 0
    solved = [_solved(GRADES[own], right, blank, held_out=True)]
    if GRADES[own] == "hard":
        solved += _by_guesses(right, blank, held_out.splits)
    for grade, name in enumerate(GRADES) if box == 3 and others else ():
        if grade != own:
            puzzles = make_batch(box, grade, OTHER_SEED, 0, others)
            solved.append(_solved(name, _answers(model, puzzles, steps)[0], puzzles.inputs == 0, held_out=False))
    return PuzzleReport(trained, used, tuple(solved), None if halting is None else _halting(right.all(2), halting, used))


def _by_guesses(right: Any, blank: Any, splits: Any) -> list[Solved]:
    kinds = []
    for low, high in _GUESSES:
        some = (splits >= low) & (splits <= high)
        if some.any():
            guesses = f"{low}" if low == high else f"{low} or more" if high == 2**16 else f"{low} to {high}"
            kinds.append(_solved(f"hard, {guesses} guesses", right[:, some], blank[some], held_out=True))
    return kinds


def _solved(kind: str, right: Any, blank: Any, *, held_out: bool) -> Solved:
    exact = tuple(Share(int(each.sum()), len(each)) for each in right.all(2))
    return Solved(kind, held_out, exact, tuple(float(each[blank].mean()) for each in right))


def _halting(exact: Any, logits: Any, used: int) -> Halting:
    """Return what the halting head is worth in the first `used` steps, of (N, n) answers and (N, n) logits."""
    stop = logits[:used] > 0
    stop_at = np.where(stop.any(0), stop.argmax(0), used - 1)
    told = stop == exact[:used]
    return Halting(
        Share(int(told.sum()), told.size),
        Share(int(exact[stop_at, np.arange(len(stop_at))].sum()), len(stop_at)),
        float(stop_at.mean() + 1),
    )


@torch.no_grad()
def _answers(model: GPT, puzzles: Puzzles, steps: int) -> tuple[Any, Any]:
    """Return (N, n, cells) bool which cells are right after each supervision step; (N, n) halting logits or None."""
    device, training = model.head.weight.device, model.training
    model.eval()
    right, halting = [], []
    try:
        for first in range(0, len(puzzles), AT_ONCE):
            x = torch.from_numpy(puzzles.inputs[first : first + AT_ONCE].astype(np.int64)).to(device)
            y = torch.from_numpy(puzzles.solutions[first : first + AT_ONCE].astype(np.int64)).to(device)
            tokens, logits = _solve(model, x, steps)
            right.append((tokens == y).cpu().numpy())
            if logits is not None:
                halting.append(logits.float().cpu().numpy())
    finally:
        model.train(training)
    return np.concatenate(right, axis=1), np.concatenate(halting, axis=1) if halting else None


def _solve(model: GPT, x: Tensor, steps: int) -> tuple[Tensor, Tensor | None]:
    if not model.shape.supervision:
        return model(x).argmax(-1)[None], None
    solve: Any = model.solve_steps  # only models that answer after each supervision step have it
    tokens, halting = solve(x, steps)
    return tokens, halting
