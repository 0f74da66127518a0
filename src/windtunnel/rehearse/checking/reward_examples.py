"""Examples of right and wrong answers for a reward: the user's own, or ones made for what the recipe trains on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.recipe import ArithmeticCorpus, Recipe

from .types import CheckFailed

KEYS = {"prompt", "good", "bad", "truth"}
MOST = 50
GARBAGE = ("asdf qwer zxcv uiop", "!@#$%^&*()_+ {}[]", "the the the the the the the the")
STYLES = (
    "{}",
    "The answer is {}.",
    "\\boxed{{{}}}",
    "#### {}",
    "<answer>{}</answer>",
    "<reasoning>so</reasoning><answer>{}</answer>",
)
"""Forms in which rewards commonly expect the answer, where the recipe gives no examples."""


@dataclass(frozen=True)
class Example:
    """A prompt, an answer that deserves the most, and answers that deserve less. `where`: for messages."""

    where: str
    prompt: str
    good: str
    bad: tuple[str, ...]
    truth: str | None


def read_examples(path: Path) -> list[Example]:
    """The user's examples. Raises CheckFailed naming file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CheckFailed(f"stages.rl.reward_examples: {path} does not exist", "give an existing file of JSON lines") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckFailed(f"stages.rl.reward_examples: {path} cannot be read: {error}") from None
    examples = [_example(f"{path}:{number}", line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not examples:
        raise CheckFailed(f"stages.rl.reward_examples: {path} is empty", 'one a line: {"prompt": ..., "good": ..., "bad": ...}')
    return examples[:MOST]


def _example(where: str, line: str) -> Example:
    fix = 'one a line: {"prompt": "2+2=", "good": "4", "bad": "5", "truth": "4"}'
    try:
        data: Any = json.loads(line)
    except ValueError as error:
        raise CheckFailed(f"{where}: not JSON: {error}", fix) from None
    if not isinstance(data, dict):
        raise CheckFailed(f"{where}: expected an object with prompt, good and bad", fix)
    unknown, missing = sorted(data.keys() - KEYS), sorted({"prompt", "good", "bad"} - data.keys())
    if unknown or missing:
        raise CheckFailed(f"{where}: " + (f"unknown key {unknown[0]}" if unknown else f"no {missing[0]}"), fix)
    bad = data["bad"] if isinstance(data["bad"], list) else [data["bad"]]
    texts = [data["prompt"], data["good"], *bad]
    if not bad or not all(isinstance(text, str) for text in texts) or not isinstance(data.get("truth"), str | None):
        raise CheckFailed(f"{where}: prompt, good and truth must be text, bad text or a list of texts", fix)
    if data["good"] in bad:
        raise CheckFailed(f"{where}: the same answer is good and bad", fix)
    return Example(where, data["prompt"], data["good"], tuple(bad), data.get("truth"))


def made_examples(recipe: Recipe) -> Iterator[Example]:
    """Sums, in the corpus's own form where it is arithmetic; the form of the answer is tried in several styles."""
    if isinstance(recipe.data.corpus, ArithmeticCorpus):
        for left, right in ((12, 34), (7, 5), (90, 9)):
            total = left + right
            yield Example("made", f"H{left}+{right}B", f"{total}L", (f"{total + 1}L", f"-{total}L"), str(total))
        return
    for style in STYLES:
        for left, right in ((17, 25), (103, 48)):
            total = left + right
            wrong = (style.format(total + 1), style.format(left))
            yield Example(f"made, as {style.format('N')!r}", f"What is {left} + {right}?", style.format(total), wrong, str(total))
