"""Conversations as records have them, four formats read as messages and every malformed record named; or generated."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import xxhash

from windtunnel.recipe import ConversationCorpus, UserError, parse_json

from .arithmetic import questions
from .corpus import CorpusFile
from .exercises import draw_exercises
from .formats import form_of, half_character, records
from .kernels_files import TaskReader
from .not_text import as_completions

Message = dict[str, Any]
Record = dict[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool")
EXPECTED = (
    'expected one of: {"messages": [{"role", "content"}]}, {"prompt", "completion"}, '
    '{"conversations": [{"from", "value"}]}, {"instruction", "input", "output"}'
)
# The names that ShareGPT and its many children give the same four roles.
_SHAREGPT_ROLES = {
    "system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
    "bing": "assistant", "bard": "assistant", "model": "assistant", "function_call": "assistant", "tool": "tool",
    "function": "tool", "function_response": "tool", "observation": "tool",
}  # fmt: skip
_TRAINED = ("train", "weight")
_SHOWN = 3
DRAWS = 10  # sums drawn at most for each that is wanted: few digits have few different ones


class Malformed(ValueError):
    """A record that is no conversation; the message says why, the reader adds where."""


@dataclass(frozen=True)
class Conversation:
    """A conversation and where it stands ('file:line').

    Attributes:
        tools: what templates are told of tools, if anything.
        side: decides the split where it is not what is said: conversations of one side stay together.
    """

    where: str
    messages: list[Message]
    tools: list[Any] | None = None
    side: int | None = None

    @property
    def key(self) -> int:
        """xxh3-64 of what is said and by whom; it decides the split, whatever the template."""
        if self.side is not None:
            return self.side
        said = [(m["role"], m.get("content"), m.get("tool_calls")) for m in self.messages]
        return xxhash.xxh3_64_intdigest(json.dumps(said, ensure_ascii=False, sort_keys=True).encode("utf-8", "replace"))


@dataclass
class ConversationReader:
    """Reads the files of a corpus in one format, told by the first record where the recipe leaves it open; or generates.

    Attributes:
        seed: of what is generated.
        format: messages, completion, sharegpt, alpaca or generated; 'auto' until the first record has been read.
        dropped: where and why records were left out (data.corpus.malformed=drop).
        tasks: what read kernel tasks.
    """

    corpus: ConversationCorpus
    seed: int = 0
    format: str = ""
    dropped: list[str] = field(default_factory=list)
    tasks: TaskReader | None = None

    def read(self, files: Sequence[CorpusFile]) -> Iterator[Conversation]:
        """Yield every conversation, in the order of the files.

        Raises:
            UserError: a file cannot be read, or a record is no conversation of the format (names file and line).
        """
        self.format, self.dropped = self.corpus.format, []
        if self.corpus.kernels is not None or self.corpus.exercises is not None or not self.corpus.files:
            self.format = "generated"
            system = [] if self.corpus.system is None else [{"role": "system", "content": self.corpus.system}]
            for where, asked, answer, side in self._generated():
                said = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
                yield Conversation(where, [*system, *said], side=side)
            return
        for file in files:
            form = form_of(file.path, "records")
            for number, record in records(file.path, form):
                where = f"{file.path}:{number}"
                try:
                    if self.format == "auto":
                        # The first record decides for all: files that mix formats are usually several corpora put together by
                        # mistake.
                        self.format = _format_of(record)
                    yield self.conversation(where, record)
                except Malformed as error:
                    if self.corpus.malformed == "refuse":
                        fix = "mend the record, or --set data.corpus.malformed=drop to leave such records out"
                        if self.format == "auto" and form in ("jsonl", "parquet"):  # nothing fitted yet: the others will be alike
                            fix = as_completions(file.path, record, table=form == "parquet") or fix
                        raise UserError(f"{where}: {error}", fix) from None
                    self.dropped.append(f"{where}: {error}")

    def _generated(self) -> Iterator[tuple[str, str, str, int | None]]:
        """Yield (where, question, right answer, side of the split) of what is generated."""
        if self.corpus.kernels is not None:
            self.tasks = TaskReader(self.corpus.kernels, self.seed)
            yield from ((task.where, task.prompt, task.answer or "", task.side) for task in self.tasks.read())
        elif self.corpus.exercises is not None:
            # On the same side of the split as where they are only asked, in reinforcement learning.
            for number, one in enumerate(draw_exercises(self.corpus.exercises, self.seed), 1):
                yield f"exercise {number:,}", one.prompt, one.written, one.side
        else:
            yield from self._sums()

    def _sums(self) -> Iterator[tuple[str, str, str, None]]:
        """Different sums, the same ones for the same seed; fewer than asked for where there are no more."""
        assert self.corpus.arithmetic is not None
        wanted = self.corpus.arithmetic.documents
        draws = self.corpus.arithmetic.model_copy(update={"documents": DRAWS * wanted})
        seen: set[str] = set()
        for asked, problem in questions(draws, self.seed):
            if problem.prompt in seen:
                continue
            seen.add(problem.prompt)
            yield f"sum {len(seen):,}", asked, problem.answer, None
            if len(seen) == wanted:
                return
        self.dropped.append(f"data.corpus.arithmetic: {DRAWS * wanted:,} draws gave {len(seen):,} different sums, not {wanted:,}")

    def conversation(self, where: str, record: Record) -> Conversation:
        """Return the conversation that a record of the format holds. Raises Malformed."""
        if not _READERS[self.format][0](record):
            other = next((name for name, (fits, _) in _READERS.items() if fits(record)), None)
            what = f"a record in the format {other}" if other else f"it has the keys {', '.join(sorted(record)) or 'none'}"
            raise Malformed(f"{what}, and the records before are in the format {self.format}; one corpus has one format")
        messages = [check_message(m) for m in _READERS[self.format][1](record)]
        if self.corpus.system is not None and messages[0]["role"] not in ("system", "developer"):
            messages.insert(0, {"role": "system", "content": self.corpus.system})
        if not any(m["role"] == "assistant" for m in messages):
            raise Malformed("no turn of the assistant's: there is nothing to learn")
        return Conversation(where, messages, _tools(record.get("tools")))

    def notes(self) -> list[str]:
        """Say which format was found and what was left out."""
        if self.tasks is not None:
            return ["kernel tasks, split by combination of operators", *self.tasks.notes()]
        if self.corpus.exercises is not None:
            return ["generated exercises, split by what is asked"]
        if self.format == "generated":
            return ["generated sums, asked and answered", *self.dropped]
        said = [f"the records are in the format {self.format}"]
        if self.corpus.files and self.corpus.arithmetic is not None:
            said.append("data.corpus.files are given: nothing is generated")
        if self.dropped:
            shown = "; ".join(self.dropped[:_SHOWN])
            said.append(
                f"{len(self.dropped):,} malformed records left out: {shown}{' ...' if len(self.dropped) > _SHOWN else ''}"
            )
        return said


def _format_of(record: Record) -> str:
    found = [name for name, (fits, _) in _READERS.items() if fits(record)]
    if not found:
        raise Malformed(f"no conversation: it has the keys {', '.join(sorted(record)) or 'none'}; {EXPECTED}")
    return found[0]


def _from_messages(record: Record) -> list[Message]:
    key = "messages" if "messages" in record else "conversations"
    if not isinstance(record[key], list) or not record[key]:
        raise Malformed(f"{key} is {_kind(record[key])}, expected a list of messages with at least one")
    return list(record[key])


def _from_completion(record: Record) -> list[Message]:
    prompt, completion = record["prompt"], record["completion"]
    asked = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    answered = completion if isinstance(completion, list) else [{"role": "assistant", "content": completion}]
    # Only the completion is learned, also where the prompt holds earlier answers.
    return [{**m, "train": False} if isinstance(m, dict) else m for m in asked] + answered


def from_sharegpt(record: Record) -> list[Message]:
    """Return the messages of a record in ShareGPT's format. Raises Malformed."""
    messages = []
    for index, turn in enumerate(_from_messages({"conversations": record["conversations"]})):
        if not isinstance(turn, dict) or "from" not in turn or "value" not in turn:
            raise Malformed(f"conversations[{index}] lacks 'from' or 'value'")
        role = _SHAREGPT_ROLES.get(str(turn["from"]).lower())
        if role is None:
            raise Malformed(f"conversations[{index}]: from is {turn['from']!r}, expected one of {', '.join(_SHAREGPT_ROLES)}")
        kept = {key: turn[key] for key in _TRAINED if turn.get(key) is not None}
        messages.append({"role": role, "content": turn["value"], **kept})
    system = record.get("system")
    return [{"role": "system", "content": system}, *messages] if isinstance(system, str) and system else messages


def from_alpaca(record: Record) -> list[Message]:
    """Return the messages of a record in Alpaca's format. Raises Malformed."""
    instruction, extra = record["instruction"], record.get("input") or ""
    if not isinstance(instruction, str) or not isinstance(extra, str):
        raise Malformed("instruction or input is no text")
    # The Alpaca template writes the input under a heading of its own; others see it below the instruction.
    asked = {"role": "user", "content": f"{instruction}\n\n{extra}" if extra else instruction}
    if extra:
        asked |= {"instruction": instruction, "input": extra}
    system = record.get("system")
    first = [{"role": "system", "content": system}] if isinstance(system, str) and system else []
    return [*first, asked, {"role": "assistant", "content": record["output"]}]


_READERS: dict[str, tuple[Any, Any]] = {
    "messages": (
        lambda r: "messages" in r or ("conversations" in r and _first_keys(r["conversations"]) >= {"role"}),
        _from_messages,
    ),
    "sharegpt": (lambda r: "conversations" in r and not _first_keys(r["conversations"]) >= {"role"}, from_sharegpt),
    "completion": (lambda r: {"prompt", "completion"} <= set(r), _from_completion),
    "alpaca": (lambda r: {"instruction", "output"} <= set(r), from_alpaca),
}


def _first_keys(turns: Any) -> set[str]:
    return set(turns[0]) if isinstance(turns, list) and turns and isinstance(turns[0], dict) else set()


def check_message(message: Any) -> Message:
    """Return one message, checked; keys without a value, which Parquet fills in, are left out."""
    if not isinstance(message, dict):
        raise Malformed(f"a message is {_kind(message)}, expected an object with role and content")
    kept = {key: value for key, value in message.items() if value is not None}
    role = kept.get("role")
    if role not in ROLES:
        raise Malformed(f"unknown role {role!r}, expected one of {', '.join(ROLES)}")
    if isinstance(kept.get("content"), list):
        kept["content"] = _joined(kept["content"])
    if not isinstance(kept.get("content"), str):
        if role != "assistant" or not kept.get("tool_calls"):
            raise Malformed(f"the {role}'s content is {_kind(message.get('content'))}, expected text")
        kept["content"] = ""
    elif role == "assistant" and not kept["content"].strip() and not kept.get("tool_calls"):
        raise Malformed("a turn of the assistant's is empty")
    if half := half_character(kept["content"]):
        raise Malformed(f"the {role}'s content {half}")
    return kept


def _joined(parts: list[Any]) -> str:
    """Return the text of content given as parts, under the key text or, in some files, value."""
    texts = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else _kind(part)
        text = part.get("text", part.get("value")) if isinstance(part, dict) else None
        if kind != "text" or not isinstance(text, str):
            raise Malformed(f"content has a part of type {kind!r}; only text can be trained on")
        texts.append(text)
    return "".join(texts)


def _tools(tools: Any) -> list[Any] | None:
    if isinstance(tools, str):
        try:
            tools = parse_json(tools)
        except ValueError:
            raise Malformed("tools is text, but not JSON") from None
    if tools is not None and not isinstance(tools, list):
        raise Malformed(f"tools is {_kind(tools)}, expected a list")
    return tools or None


def _kind(value: Any) -> str:
    return "null" if value is None else "empty" if value in ("", []) else type(value).__name__


def learned(message: Message, index: int, last: int, loss: str) -> bool:
    """Return whether a turn of the assistant's is learned: its own `train` or `weight` first, else as the recipe says.

    `last` is the index of the assistant's last turn, `loss` answers, last or all.
    """
    # `weight` is how OpenAI's files say it.
    for key in _TRAINED:
        if key in message:
            return bool(message[key])
    return index == last if loss == "last" else True
