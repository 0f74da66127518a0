"""JSON lines: every line an object of one schema, with inputs that differ and answers that are not all the same."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from windtunnel.recipe import TextCorpus

from .context import Context
from .data_files import has_text, head, is_json_lines
from .types import Check, CheckFailed, Evidence, Findings, Say

MOST_RECORDS = 200_000
LABELS = 20
"""Answers of so few kinds are labels, whose balance matters."""
FEW_INPUTS, FEWEST_INPUTS = 0.5, 0.01
UNBALANCED, ONE_SIDED = 0.8, 0.98
IN_PROMPT = 0.5
_INPUTS = ("prompt", "question", "input", "instruction", "problem")
_OUTPUTS = ("answer", "completion", "response", "output", "chosen", "truth", "label", "solution", "action")
_ROLES = ("system", "developer", "user", "assistant", "tool")
_EXPECTED = 'one of: {"text"}, {"messages": [{"role", "content"}]}, {"prompt", "answer"}, {"instruction", "input", "output"}'


@dataclass(frozen=True)
class Record:
    """One line as training would see it. `answer` is None where it has none (plain text, prompts for RL)."""

    where: str
    prompt: str
    answer: str | None


def has_records(context: Context) -> bool:
    """Whether the corpus has files of JSON lines."""
    from windtunnel.data import corpus_files

    corpus = context.recipe.data.corpus
    if not isinstance(corpus, TextCorpus) or not has_text(context):
        return False
    return any(is_json_lines(file.path, head(file)) for file in corpus_files(corpus)[:100])


def has_conversations(context: Context) -> bool:
    """Whether the first record of the corpus is a conversation."""
    from windtunnel.data import corpus_files

    corpus = context.recipe.data.corpus
    if not isinstance(corpus, TextCorpus):
        return False
    first = head(corpus_files(corpus)[0])
    return b'"messages"' in first.split(b"\n", 1)[0]


def records(context: Context, say: Say) -> Evidence:
    """Read every line (up to 200,000) and judge inputs and answers."""
    found = Findings()
    rows = []
    for number, record in enumerate(_read(context)):
        if number == MOST_RECORDS:
            break
        if number % 10_000 == 0:
            say(f"{number:,} lines")
        rows.append(record)
    if not rows:
        raise CheckFailed("no line holds a record", _EXPECTED)
    inputs = Counter(record.prompt for record in rows)
    _judge_inputs(rows, inputs, found)
    answers = Counter([record.answer for record in rows if record.answer is not None])
    majority = _judge_answers(rows, answers, inputs, found) if answers else None
    if context.recipe.sft is not None and not answers and all(not record.prompt for record in rows):
        found.problem("no record has text to learn from", _EXPECTED)
    text = f"{len(rows):,} records, {len(inputs):,} different inputs"
    if answers:
        text += f", {len(answers):,} different answers; always giving the most common one is right in {majority:.1%}"
    facts = {"records": len(rows), "distinct_inputs": len(inputs), "distinct_answers": len(answers), "majority": majority}
    return found.evidence(text, facts)


def _judge_inputs(rows: list[Record], inputs: Counter[str], found: Findings) -> None:
    share = len(inputs) / len(rows)
    prompt, times = inputs.most_common(1)[0]
    if len(rows) > 1 and (len(inputs) == 1 or share < FEWEST_INPUTS):
        what = f"{len(rows):,} records have {len(inputs):,} different input{'s' if len(inputs) > 1 else ''}"
        found.problem(
            f"{what}, such as {prompt[:60]!r}", "nothing about the input can be learned: put what differs into it", shows="end"
        )
    elif share < FEW_INPUTS:
        found.warn(f"only {share:.0%} of the inputs differ; {prompt[:60]!r} stands there {times:,} times: remove repetitions")


def _judge_answers(rows: list[Record], answers: Counter[str], inputs: Counter[str], found: Findings) -> float:
    total = sum(answers.values())
    answer, times = answers.most_common(1)[0]
    majority = times / total
    if len(answers) <= LABELS and total >= 20:
        what = f"{majority:.0%} of the answers are {answer[:40]!r}"
        if majority >= ONE_SIDED:
            found.problem(f"{what}: a model that always says so looks right", "balance the labels", shows="end")
        elif majority >= UNBALANCED:
            found.warn(f"{what}: balance the labels, or compare with always saying so")
    empty = sum(1 for record in rows if record.answer is not None and not record.answer.strip())
    if empty:
        first = next(r.where for r in rows if r.answer is not None and not r.answer.strip())
        found.problem(f"{empty:,} answers are empty, the first at {first}", "fill them or leave the records out", shows="end")
    told = sum(1 for r in rows if r.answer and len(r.answer.strip()) > 3 and r.answer.strip() in r.prompt)
    if told > IN_PROMPT * total:
        found.warn(f"{told / total:.0%} of the answers stand in their own prompt: the model need only copy; take them out of it")
    different = Counter(record.prompt for record in {(r.prompt, r.answer): r for r in rows if r.answer is not None}.values())
    conflicting = sum(1 for n in different.values() if n > 1)
    if conflicting > 0.05 * len(inputs) and conflicting > 1 and len(answers) <= LABELS:
        found.warn(f"{conflicting:,} inputs have several labels: they contradict one another")
    return majority


def _read(context: Context) -> Iterator[Record]:
    from windtunnel.data import corpus_files

    corpus = context.recipe.data.corpus
    assert isinstance(corpus, TextCorpus)
    rl = context.recipe.rl is not None
    keys: set[str] | None = None
    for file in corpus_files(corpus):
        if not is_json_lines(file.path, head(file)):
            continue
        with open(file.path, encoding="utf-8-sig", errors="strict") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                where = f"{file.path}:{number}"
                data = _object(where, line)
                if keys is None:
                    keys = set(data)
                elif not (keys <= set(data) or set(data) <= keys):
                    odd = sorted(set(data) ^ keys)
                    raise CheckFailed(f"{where}: other keys than the lines before: {', '.join(odd[:4])}", "write all lines alike")
                yield _record(where, data, rl)


def _object(where: str, line: str) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except ValueError as error:
        shown = line.strip()[:60]
        raise CheckFailed(f"{where}: not JSON: {error} ({shown!r})", "write one JSON object a line") from None
    if not isinstance(data, dict):
        raise CheckFailed(f"{where}: expected an object, found a {type(data).__name__}", _EXPECTED)
    return data


def _record(where: str, data: dict[str, Any], rl: bool) -> Record:
    if "messages" in data:
        return _conversation(where, data["messages"], rl)
    if isinstance(data.get("text"), str):
        return Record(where, data["text"], None)
    inputs = [key for key in _INPUTS if key in data]
    outputs = [key for key in _OUTPUTS if key in data]
    if not inputs or (not outputs and not rl):
        missing = "a prompt" if not inputs else "an answer"
        raise CheckFailed(f"{where}: no key holds {missing}; it has {', '.join(sorted(data)) or 'none'}", _EXPECTED)
    for key in (*inputs, *outputs[:1]):
        if not isinstance(data[key], str | int | float) or data[key] is None:
            raise CheckFailed(f"{where}: {key} is {type(data[key]).__name__}, expected text", _EXPECTED)
    prompt = "\n".join(str(data[key]) for key in inputs)
    if not prompt.strip():
        raise CheckFailed(f"{where}: the prompt is empty", "fill it or leave the line out")
    return Record(where, prompt, str(data[outputs[0]]) if outputs else None)


def _conversation(where: str, messages: Any, rl: bool) -> Record:
    if not isinstance(messages, list) or not messages:
        raise CheckFailed(f"{where}: messages must be a list of {{role, content}}", _EXPECTED)
    for index, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in _ROLES:
            raise CheckFailed(f"{where}: message {index}: role {role!r}, expected one of {', '.join(_ROLES)}", _EXPECTED)
        content = message.get("content")
        if not isinstance(content, str) and not message.get("tool_calls"):
            raise CheckFailed(f"{where}: message {index}: content is {type(content).__name__}, expected text", _EXPECTED)
    turns = [message["role"] for message in messages if message["role"] in ("user", "assistant")]
    if any(a == b for a, b in itertools.pairwise(turns)):
        raise CheckFailed(
            f"{where}: two messages of one role in a row: {' '.join(turns[:6])}", "user and assistant must alternate"
        )
    prompt = "\n".join(f"{m['role']}: {m.get('content') or ''}" for m in messages[:-1])
    if messages[-1]["role"] != "assistant":
        if not rl:
            raise CheckFailed(
                f"{where}: the last message is the {messages[-1]['role']}'s: nothing to learn", "end with the assistant's"
            )
        return Record(where, f"{prompt}\n{messages[-1]['role']}: {messages[-1].get('content') or ''}", None)
    return Record(where, prompt, messages[-1].get("content") or "")


CHECKS = (
    Check(
        "data-records", "JSON lines are of one schema, their inputs differ and their answers are not all the same",
        "look at the line named", records, shows="end", needs=("recipe", "data-files"), applies=has_records, limit=120.0,
    ),
)  # fmt: skip
