"""Check records of JSON lines, conversations among them, and the chat template that renders conversations."""

from __future__ import annotations

import datetime
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windtunnel.check import Check, CheckFailed, Context, Evidence, Findings, Say
from windtunnel.recipe import TextCorpus

from .checks import has_text, head, is_json_lines

if TYPE_CHECKING:
    import tokenizers


# Records: one schema, inputs that differ, answers that are not all the same.

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


# Chat templates: contents whole and in order, markers that are tokens, an end after each answer.

SYSTEM, QUESTION, ANSWER, AGAIN, LAST = "You count zebras.", "How many zebras?", "Seventeen zebras.", "And lions?", "Four lions."
_MARKER = re.compile(r"<\|[^|<>\s]{1,40}\|>|<(?:start|end)_of_turn>")

# transformers' own tag, which marks what the assistant says and prints nothing.
_GENERATION = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")


class _Refused(Exception):
    """The template itself raised."""


def judge_template(
    template: str,
    inner: tokenizers.Tokenizer,
    special: dict[str, str],
    ends: set[int],
    found: Findings,
    *,
    adds_bos: bool,
    chats: bool,
) -> None:
    """Render a conversation and judge it.

    Args:
        special: texts of bos, eos and pad by name. ends: ids at which generation stops.
        adds_bos: whether the tokenizer itself puts BOS before every text.
        chats: whether conversations are trained on, so that the template decides what is learned.
    """
    turns = _turns(QUESTION, ANSWER, AGAIN, LAST)
    try:
        try:
            text = render(template, [{"role": "system", "content": SYSTEM}, *turns], special)
        except _Refused:  # some models know no system message
            text = render(template, turns, special)
        asked = render(template, turns[:3], special, add_generation_prompt=True)
        bare = render(template, turns[:3], special)
    except Exception as error:
        what = f"the chat template cannot be rendered: {type(error).__name__}: {error}"
        found.problem(what, "copy the template from the model's own tokenizer_config.json")
        return
    _judge_contents(text, found)
    _judge_markers(template, inner, found)
    _judge_end(text, inner, special, ends, found, chats)
    if asked == bare:
        found.warn("the chat template ignores add_generation_prompt: add the beginning of the assistant's turn")
    elif not render(template, turns, special).startswith(asked):
        found.warn("a prompt is rendered otherwise than at the beginning of the whole conversation: loss masks would be off")
    if adds_bos and "bos" in special and text.startswith(special["bos"]):
        found.warn("the template begins with BOS and the tokenizer adds another: encode its text with add_special_tokens=False")


def render(template: str, messages: list[dict[str, str]], special: dict[str, str], *, add_generation_prompt: bool = False) -> str:
    """The conversation as text, as transformers renders it (Jinja, sandboxed). Raises whatever the template raises."""
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> str:
        raise _Refused(message)

    def now(form: str) -> str:
        return datetime.datetime(2026, 1, 1).strftime(form)

    def to_json(value: Any, indent: int | None = None, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], undefined=jinja2.Undefined
    )
    environment.filters["tojson"] = to_json
    environment.globals.update(raise_exception=refuse, strftime_now=now)
    tokens = {f"{name}_token": text for name, text in special.items()}
    made = environment.from_string(_GENERATION.sub("", template))
    return made.render(messages=messages, tools=None, add_generation_prompt=add_generation_prompt, **tokens)


def _turns(*contents: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]


def _judge_contents(text: str, found: Findings) -> None:
    at = -1
    for content in (QUESTION, ANSWER, AGAIN, LAST):
        if text.count(content) != 1 or text.index(content) < at:
            times = text.count(content)
            what = "leaves out" if times == 0 else "repeats" if times > 1 else "puts in another order"
            found.problem(
                f"the chat template {what} a message ({content!r})",
                "copy the template from the model's own tokenizer_config.json",
            )
            return
        at = text.index(content)


def _judge_markers(template: str, inner: tokenizers.Tokenizer, found: Findings) -> None:
    for marker in dict.fromkeys(_MARKER.findall(template)):
        ids = inner.encode(marker, add_special_tokens=False).ids
        if len(ids) != 1:
            what = f"the chat template's {marker} is no token of this tokenizer: it is split into {len(ids)}"
            found.warn(f"{what}; unless the model was trained so, use the template that belongs to it")
            return


def _judge_end(
    text: str, inner: tokenizers.Tokenizer, special: dict[str, str], ends: set[int], found: Findings, chats: bool
) -> None:
    """Behind the last answer there must be a token at which generation stops."""
    eos = inner.token_to_id(special["eos"]) if "eos" in special else None
    stop = ends if eos is None else ends | {eos}
    if LAST not in text or not stop:
        return
    after = set(inner.encode(text[text.index(LAST) + len(LAST) :], add_special_tokens=False).ids)
    if after & stop:
        return
    shown = text[text.index(LAST) :][:60]
    what = f"no end-of-sequence token follows an answer in the chat template ({shown!r}): the model never learns to stop"
    fix = "end the assistant's turn with eos_token, or name what ends it as eos_token"
    if chats:
        found.problem(what, fix, shows="end")
    else:
        found.warn(f"{what}; {fix}")


CHECKS = (
    Check(
        "data-records", "JSON lines are of one schema, their inputs differ and their answers are not all the same",
        "look at the line named", records, shows="end", needs=("recipe", "data-files"), applies=has_records, limit=120.0,
    ),
)  # fmt: skip
