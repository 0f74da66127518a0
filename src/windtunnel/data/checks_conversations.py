"""Check records of JSON lines, conversations among them, and the chat template that renders conversations."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from windtunnel.check import Check, CheckFailed, Context, Evidence, Findings, Say
from windtunnel.recipe import Conversational, TextCorpus, ThesisCorpus

from .checks import WHOLE_BYTES, as_progress, head, is_json_lines
from .corpus import corpora_of, corpus_files, listed_files
from .formats import records as lines_of
from .prepared import PreparedData, prepare
from .samples import conversation_files, describe_endless, describe_packing
from .subwords import Folder
from .templates import ChatTemplate

# Records: one schema, inputs that differ, answers that are not all the same.

MOST_RECORDS = 200_000
LABELS = 20  # answers of so few kinds are labels, whose balance matters
FEW_INPUTS, FEWEST_INPUTS = 0.5, 0.01  # share of inputs that differ: worth a warning, and nothing to learn
UNBALANCED, ONE_SIDED = 0.8, 0.98  # share of the most common label
IN_PROMPT = 0.5  # share of answers that stand in their own prompt
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
    """Return whether the corpus has files of JSON lines."""
    corpus = context.recipe.data.corpus
    if not isinstance(corpus, TextCorpus):
        return False
    return any(is_json_lines(file.path, head(file)) for file in corpus_files(corpus)[:100])


def has_conversations(context: Context) -> bool:
    """Return whether the corpus has conversations that the tokenizer's own template writes, or text whose first record is one."""
    corpus = context.recipe.data.corpus
    if isinstance(corpus, Conversational):
        return corpus.template in ("auto", "model")
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
    # Of fewer records any share may be chance.
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
    # Short answers such as 'no' stand in many prompts by chance.
    told = sum(1 for r in rows if r.answer and len(r.answer.strip()) > 3 and r.answer.strip() in r.prompt)
    if told > IN_PROMPT * total:
        found.warn(f"{told / total:.0%} of the answers stand in their own prompt: the model need only copy; take them out of it")
    different = Counter(record.prompt for record in {(r.prompt, r.answer): r for r in rows if r.answer is not None}.values())
    conflicting = sum(1 for n in different.values() if n > 1)
    if conflicting > 0.05 * len(inputs) and conflicting > 1 and len(answers) <= LABELS:
        found.warn(f"{conflicting:,} inputs have several labels: they contradict one another")
    return majority


def _read(context: Context) -> Iterator[Record]:
    corpus = context.recipe.data.corpus
    assert isinstance(corpus, TextCorpus)
    rl = context.recipe.rl is not None
    keys: set[str] | None = None
    for file in corpus_files(corpus):
        if not is_json_lines(file.path, head(file)):
            continue
        for number, data in lines_of(file.path, "jsonl"):
            where = f"{file.path}:{number}"
            if keys is None:
                keys = set(data)
            elif not (keys <= set(data) or set(data) <= keys):
                odd = sorted(set(data) ^ keys)
                raise CheckFailed(f"{where}: other keys than the lines before: {', '.join(odd[:4])}", "write all lines alike")
            yield _record(where, data, rl)


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


# Conversations as training will see them: how long, what is learned, and whether held-out questions are trained on.

LONG_SHARE, MOST_LONG = 0.05, 0.5  # of the conversations that are longer than a sequence: worth a warning, and too many
LEAKED, MOST_LEAKED = 0.01, 0.25  # of the held-out questions that are trained on as well
MOST_SAMPLES = 20_000


def _chats(context: Context) -> bool:
    return all(isinstance(one, Conversational) for one in corpora_of(context.recipe))


def conversations(context: Context, say: Say) -> Evidence:
    """Prepare them as training will; judge lengths, ends of answers, the tokenizer and held-out questions."""
    recipe, found = context.recipe, Findings()
    files = recipe.data.files
    theses = isinstance(recipe.data.corpus, ThesisCorpus)  # whose gates need all of them
    whole = theses or not files or sum(file.size for file in listed_files(files)) <= WHOLE_BYTES
    prepared = prepare(recipe, progress=as_progress(say)) if whole else context.prepared
    sequence = recipe.model.sequence
    described = describe_packing(prepared, sequence)  # refuses what training refuses
    for file in conversation_files(prepared):
        packing = file.packing(sequence)
        long = packing.dropped + packing.truncated + packing.untaught
        what = f"{long:,} of {file.samples:,} conversations ({long / file.samples:.0%}) are longer than model.sequence={sequence}"
        # The next power of two that holds the longest, up to 131,072.
        fix = f"--set model.sequence={min(1 << int(max(file.starts[1:] - file.starts[:-1]) - 1).bit_length(), 1 << 17)}"
        if long > MOST_LONG * file.samples:
            found.problem(f"{what}: most of the data is lost or cut", fix)
        elif long > LONG_SHARE * file.samples:
            found.warn(f"{what}: {fix} takes them whole")
    for note in prepared.notes:
        if "left out" in note or "different sums" in note:
            found.warn(note)
    _judge_ends(prepared, found)
    _judge_held_out(prepared, found)
    text = f"{prepared.train_documents:,} to train on, {prepared.validation_documents:,} held out; " + "; ".join(described)
    return found.evidence(text, {"train": prepared.train_documents, "held_out": prepared.validation_documents})


def _judge_ends(prepared: PreparedData, found: Findings) -> None:
    """Judge whether what ends an answer is learned: else the model never stops."""
    for file in conversation_files(prepared):
        if endless := describe_endless(file, prepared.tokenizer):
            found.problem(endless, "--set data.corpus.template=chatml, or mend the template", shows="end")


def _judge_held_out(prepared: PreparedData, found: Findings) -> None:
    """Questions of the held-out split that are trained on too: answers to those say little."""

    def asked(file: Any) -> list[bytes]:
        return [file.last_turn(number)[0].tobytes() for number in range(min(file.samples, MOST_SAMPLES))]

    held_out = [file for file in getattr(prepared.validation, "parts", (prepared.validation,)) if hasattr(file, "last_turn")]
    trained = {question for file in conversation_files(prepared) for question in asked(file)}
    questions = [question for file in held_out for question in asked(file)]
    leaked = sum(question in trained for question in questions)
    what = f"{leaked:,} of {len(questions):,} held-out questions are trained on too, with another answer"
    fix = "leave repeated questions out"
    if leaked > MOST_LEAKED * len(questions):
        found.problem(f"{what}: what is measured on them is what was learned by heart", fix, shows="first validation")
    elif leaked > LEAKED * len(questions):
        found.warn(f"{what}: {fix}")


# Chat templates: contents whole and in order, markers that are tokens, an end after each answer.

# Words that no template has in itself.
SYSTEM, QUESTION, ANSWER, AGAIN, LAST = "You count zebras.", "How many zebras?", "Seventeen zebras.", "And lions?", "Four lions."
_MARKER = re.compile(r"<\|[^|<>\s]{1,40}\|>|<(?:start|end)_of_turn>")


def judge_template(folder: Folder, ends: set[int], found: Findings, *, chats: bool) -> None:
    """Render a conversation by the chat template of a tokenizer, and judge it.

    `ends` are the ids at which generation stops; `chats`: conversations are trained on, so that the template decides what is
    learned.
    """
    from jinja2 import TemplateError

    assert folder.template is not None
    template = ChatTemplate("model", folder.template, folder, folder.special)
    turns = _turns(QUESTION, ANSWER, AGAIN, LAST)
    try:
        try:
            text = template.render([{"role": "system", "content": SYSTEM}, *turns])
        except TemplateError:  # some models know no system message, and their templates refuse it
            text = template.render(turns)
        asked = template.render(turns[:3], ask=True)
        bare = template.render(turns[:3])
        whole = template.render(turns)
    except Exception as error:
        what = f"the chat template cannot be rendered: {type(error).__name__}: {error}"
        found.problem(what, "copy the template from the model's own tokenizer_config.json")
        return
    _judge_contents(text, found)
    _judge_markers(folder, found)
    _judge_end(text, folder, ends, found, chats)
    if not whole.startswith(asked):
        found.warn("a prompt is rendered otherwise than at the beginning of the whole conversation: loss masks would be off")
    elif asked == bare and not whole[len(asked) :].lstrip().startswith(LAST):  # with some, the question's end is the beginning
        found.warn("the chat template ignores add_generation_prompt: add the beginning of the assistant's turn")
    if folder.text_start and text.startswith(folder.text_start):
        found.warn("the template begins with BOS and the tokenizer adds another: encode its text with add_special_tokens=False")


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


def _judge_markers(folder: Folder, found: Findings) -> None:
    for marker in dict.fromkeys(_MARKER.findall(folder.template or "")):
        ids = folder.marked.encode(marker, add_special_tokens=False).ids
        if len(ids) != 1:
            what = f"the chat template's {marker} is no token of this tokenizer: it is split into {len(ids)}"
            found.warn(f"{what}; unless the model was trained so, use the template that belongs to it")
            return


def _judge_end(text: str, folder: Folder, ends: set[int], found: Findings, chats: bool) -> None:
    """Behind the last answer there must be a token at which generation stops."""
    eos = folder.token(folder.special["eos_token"]) if "eos_token" in folder.special else None
    stop = ends if eos is None else ends | {eos}
    if LAST not in text or not stop:
        return
    after = set(folder.marked.encode(text[text.index(LAST) + len(LAST) :], add_special_tokens=False).ids)
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
    Check(
"conversations",
        "conversations fit, their answers end, and held-out questions are not trained on",
        "look at them: windtunnel preview RECIPE",
        conversations,
        shows="start",
        needs=("recipe", "data"),
        applies=_chats,
        limit=600.0,
    ),
)  # fmt: skip
