"""Answers that models write and rewards seldom expect."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from .context import Context
from .reward_plugin import examples, open_reward
from .reward_process import Reply
from .types import Evidence, Findings, Say

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
    """Nothing that a model may write crashes it, hangs it, or is run as code in its process."""
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
    """What is wrong with a reply to an odd answer, and what to do."""
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
