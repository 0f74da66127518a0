"""Answers to try a reward on: right and wrong ones, and what models write and rewards seldom expect."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.check import CheckFailed, Context, Evidence, Findings, Say
from windtunnel.recipe import ArithmeticCorpus, PromptCorpus, Recipe

from .reward_child import ANSWER, TRUTHS
from .reward_process import CALL_SECONDS, Reply, Reward, RewardFailed, RewardProcess, find_reward

# The recipe's reward as a process that can be asked, and the examples it is judged by.


def is_rl(context: Context) -> bool:
    """Return whether the recipe does reinforcement learning."""
    return context.recipe.rl is not None


def has_reward(context: Context) -> bool:
    """Return whether the recipe names a reward."""
    return context.recipe.rl is not None and context.recipe.rl.reward is not None


def reward_of(context: Context) -> Reward:
    """Find the recipe's reward; the file need not exist. Raises UserError; see `find_reward`."""
    rl = context.recipe.rl
    assert rl is not None
    assert rl.reward is not None
    return find_reward(rl.reward, "stages.rl.reward")


def open_reward(context: Context, call_seconds: float = CALL_SECONDS) -> RewardProcess:
    """Return the reward, loaded. Raises CheckFailed when it cannot be."""
    try:
        return reward_of(context).open(context.folder, call_seconds=call_seconds, record=_columns(context))
    except RewardFailed as error:
        raise CheckFailed(error.message, error.fix) from None


def _columns(context: Context) -> dict[str, Any]:
    """Return the columns of a prompt of the recipe's files, which a reward may ask for by name; none where there are no files."""
    corpus = context.recipe.data.corpus
    if not isinstance(corpus, PromptCorpus) or not corpus.files:
        return {}
    prompt = context.prepared.train.prompt(0)  # type: ignore[attr-defined]
    columns: dict[str, Any] = dict(prompt.data)
    if prompt.answer_key is not None and prompt.answer_key not in (ANSWER, *TRUTHS):  # these are the example's own
        columns[prompt.answer_key] = prompt.answer
    return columns


def examples(context: Context) -> list[Example]:
    """Return the user's, or made ones. Raises CheckFailed for a file that holds none."""
    rl = context.recipe.rl
    given = rl.reward_examples if rl is not None else None
    return read_examples(Path(given).expanduser()) if given else list(made_examples(context.recipe))


# Examples of right and wrong answers: the user's own, or made for what the recipe trains on.

KEYS = {"prompt", "good", "bad", "truth"}
# Examples that are tried: each takes eight calls or so.
MOST = 50
GARBAGE = ("asdf qwer zxcv uiop", "!@#$%^&*()_+ {}[]", "the the the the the the the the")
# Forms in which rewards commonly expect the answer, where the recipe gives no examples.
STYLES = (
    "{}",
    "The answer is {}.",
    "\\boxed{{{}}}",
    "#### {}",
    "<answer>{}</answer>",
    "<reasoning>so</reasoning><answer>{}</answer>",
)


@dataclass(frozen=True)
class Example:
    """A prompt, an answer that deserves the most, and answers that deserve less. `where`: for messages."""

    where: str
    prompt: str
    good: str
    bad: tuple[str, ...]
    truth: str | None


def read_examples(path: Path) -> list[Example]:
    """Return the user's examples. Raises CheckFailed naming file and line."""
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
    """Yield sums, in the corpus's own form where it is arithmetic; the form of the answer is tried in several styles."""
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


# Odd answers.

# Shorter than a call may take in training: there are many of them.
ODD_SECONDS = 5.0

ODD_ANSWERS: tuple[tuple[str, str], ...] = (
    ("nothing", ""),
    ("white space", " \n\t \r\n "),
    ("control characters", "\x00\x01\x07\x1b[2J\x7f"),
    ("signs beyond ASCII", "答えは四です 🤷‍♀️ \u202e\u0301 ﷽"),
    ("a character that was cut", "4\ufffd\ufffd"),
    ("5,000 digits", "9" * 5000),
    ("no number at all", "nan inf -inf 1e999 0x 1_0 ٣"),
    ("a division by zero", "1/0"),
    ("unclosed brackets", "\\boxed{" + "(" * 3000 + "{" * 300 + "<answer>"),
    ("brackets 20,000 deep", "[" * 20_000 + "]" * 20_000),
    ("40 equal letters and a sign", "a" * 40 + "!"),
    ("30,000 spaces", " " * 30_000 + "x"),
    ("a tower of powers", "9**9**9**9"),
    ("200,000 characters", "0123456789" * 20_000),
    ("broken JSON", '{"answer": [1, 2'),
    ("format fields", "{0} {answer} %s %d \\1 \\g<0>"),
)
# It does something only if it is run as Python.
MARKER_ANSWER = "__import__('pathlib').Path({path!r}).touch()"


def robustness(context: Context, say: Say) -> Evidence:
    """See that nothing that a model may write crashes it, hangs it, or is run as code in its process."""
    example = examples(context)[0]
    marker = context.folder / "answer-was-run"
    found = Findings()
    problems: dict[tuple[str, str], list[str]] = {}
    hung = asked = 0
    with open_reward(context, ODD_SECONDS) as reward:
        for name, answer in _odd(marker):
            say(name)
            reply = reward.call(example.prompt, answer, example.truth)
            asked += 1
            if marker.exists():
                marker.unlink()
                found.problem(
                    "it runs the model's answer as code in its own process: an answer wrote a file",
                    "never eval or exec what a model writes; run it in a sandbox of its own",
                )
            problem = _problem(reply)
            if problem:
                problems.setdefault(problem, []).append(name)
            hung += reply.ended == "hung"
            # Each one waits for its time to be over, and the rest would say the same.
            if hung == 2:
                break
        without = reward.call(example.prompt, example.good, None)
    for (what, fix), names in problems.items():
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        found.problem(f"an answer of {shown}: {what}", fix, shows="first steps")
    if without.raised or without.ended:
        found.warn(f"without a truth (None) it fails: {without.problem}; every prompt must then have one")
    return found.evidence(
        f"{asked} odd answers, from empty to 200,000 characters: each got a finite number", {"odd_answers": asked}
    )


def _problem(reply: Reply) -> tuple[str, str] | None:
    """Return what is wrong with a reply to an odd answer, and what to do."""
    if reply.ended:
        return reply.problem, "bound its work, catch what input can cause"
    if reply.raised:
        return f"raises {reply.problem}", "a strange answer is a wrong one: return its reward"
    if reply.value is None or not math.isfinite(reply.value):
        return reply.problem or f"gives {reply.value}", "return a finite number"
    return None


def _odd(marker: Path) -> Iterator[tuple[str, str]]:
    yield from ODD_ANSWERS
    yield "code", MARKER_ANSWER.format(path=str(marker))
