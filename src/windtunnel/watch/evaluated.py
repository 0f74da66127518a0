"""What a run's evaluation.json says, as rows and samples for its page."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.run import EVALUATION

from .text import share

MOST_SAMPLES, MOST_WRONG = 4, 3
TRUTH, ANSWER = {"exact_match": "expected", "answers": "truth"}, {"exact_match": "got", "answers": "answer"}
LONGEST = 1500
"""Letters of a sample."""


@dataclass(frozen=True)
class Sample:
    """A prompt and what the model made of it."""

    prompt: str
    text: str
    note: str = ""


def evaluation_of(folder: Path) -> tuple[list[tuple[str, str, str]], list[Sample]]:
    """Return rows (name, value, explanation) and samples; none where a run was not evaluated, or its file cannot be read."""
    try:
        told: dict[str, Any] = json.loads((folder / EVALUATION).read_text(encoding="utf-8"))
        return list(_rows(told)), list(_samples(told))
    # Versions differ in what they write; a page without it is better than none.
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return [], []


def _rows(told: dict[str, Any]) -> list[tuple[str, str, str]]:
    where = "of the best checkpoint" + (f", step {told['step']:,}" if told.get("step") else "")
    rows = []
    for name, key, what in (
        ("bits per byte", "bits_per_byte", "of held-out text"),
        ("validation loss", "validation_loss", "nats per token"),
        ("perplexity", "perplexity", "of held-out answers"),
    ):
        if told.get(key) is not None:
            rows.append((name, f"{told[key]:.4f}", f"{what}, {where}"))
    for name, key in (("exact match", "exact_match"), ("right answers", "answers")):
        found = told.get(key)
        if found and found.get("n"):
            rows.append((name, share(found["share"]), _asked(found)))
    before = ((told.get("untuned") or {}).get("answers")) or {}
    if before.get("n"):
        rows.append(("before training", share(before["share"]), _asked(before)))
    puzzles = (told.get("puzzles") or {}).get("exact") or {}
    if puzzles.get("n"):
        rows.append(("puzzles solved", share(puzzles["share"]), _asked(puzzles)))
    return rows


def _asked(found: dict[str, Any]) -> str:
    """Return how many were asked, between which bounds the share lies, and the reward where there is one."""
    text = f"{found['right']:,} of {found['n']:,}"
    if found.get("low") is not None:
        text += f"; {found.get('confidence', 0.95):.0%} interval {share(found['low'])} to {share(found['high'])}"
    if found.get("reward") is not None:
        text += f"; mean reward {found['reward']:.3g}"
    return text


def _samples(told: dict[str, Any]) -> list[Sample]:
    found = [Sample(one.get("prompt", ""), one["text"][:LONGEST]) for one in (told.get("samples") or [])[:MOST_SAMPLES]]
    for key in ("exact_match", "answers"):
        for one in ((told.get(key) or {}).get("wrong") or [])[:MOST_WRONG]:
            why = f"; {one['why']}" if one.get("why") else ""
            note = f"wrong: expected {one.get(TRUTH[key], '?')}{why}"
            found.append(Sample(str(one.get("prompt", "")), f" {one.get(ANSWER[key], '')}"[:LONGEST], note))
    return found
