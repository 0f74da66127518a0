"""Prompts with answers for reinforcement learning: read or generated, rendered, kept beside their ids, and loaded in groups."""

from __future__ import annotations

import json
import mmap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from windtunnel.recipe import (
    ARITHMETIC_ALPHABET,
    ArithmeticCorpus,
    CharacterTokenizer,
    PromptCorpus,
    Recipe,
    UserError,
)

from .arithmetic import questions
from .conversations import Message
from .corpus import CorpusFile, listed_files
from .documents import Array
from .exercises import draw_exercises
from .formats import form_of, records
from .kernels_files import TaskReader
from .nested import as_json
from .packing import ConversationFile, pack_ids
from .prompt_columns import find_answer, find_prompt
from .samples import STORED, batches, conversation_tokenizer
from .survey import Survey, split_by_key
from .templates import ChatTemplate, choose_template
from .tokenizer import Characters, Tokenizer
from .tokens import SequenceOrder, file_checksum
from .write import NAMES, Progress, SplitWriter, Written

_AT_ONCE = 256  # prompts encoded together


@dataclass(frozen=True)
class Prompt:
    """What a model is asked, and what is known of the right answer.

    Attributes:
        number: in its split.
        ids: (n,) int64, as the generator is given them.
        prompt: the text, or the messages, as the record has it.
        answer: of the record; None where it has none.
        data: every other key of the record.
        answer_key: where the record had the answer; None: nowhere, or it was generated.
    """

    number: int
    ids: Array
    prompt: str | list[Message]
    answer: Any
    data: dict[str, Any]
    answer_key: str | None = None


@dataclass(frozen=True)
class PromptFile(ConversationFile):
    """Prompts as token ids, and beside them the records as JSON lines in the same order."""

    @property
    def records_path(self) -> Path:
        """Return the path of the records, JSON lines."""
        return self.path.with_suffix(".jsonl")

    @cached_property
    def _lines(self) -> tuple[mmap.mmap, Array]:
        with open(self.records_path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        # Where each record ends, found once: a prompt is then read alone, whatever the size of the file.
        ends = np.flatnonzero(np.frombuffer(mapped, dtype=np.uint8) == ord("\n")) + 1
        return mapped, np.concatenate([np.zeros(1, dtype=np.int64), ends])

    def prompt(self, number: int) -> Prompt:
        """Return one prompt with its record."""
        mapped, starts = self._lines
        record = json.loads(mapped[starts[number] : starts[number + 1]])
        ids = self.sample(number)[0]
        return Prompt(number, ids, record["prompt"], record["answer"], record["data"], record.get("answer_key"))


class PromptLoader:
    """Groups of prompts in the order of the seed, the same for any number of ranks, resumable by position.

    Attributes:
        position: prompts consumed, over all ranks.
    """

    def __init__(self, file: PromptFile, *, prompts: int, seed: int, rank: int = 0, world: int = 1, position: int = 0) -> None:
        """prompts: of a group, over all ranks. Raises UserError: the prompts of a group cannot be shared out evenly."""
        assert 0 <= rank < world
        if prompts % world:
            raise UserError(f"a group of {prompts} prompts cannot be shared by {world} ranks", f"ask for a multiple of {world}")
        self.file, self.prompts, self.rank, self.world, self.position = file, prompts, rank, world, position
        self._seed = seed
        self.hold_to(None, 0)

    def hold_to(self, numbers: Array | None, began: int) -> None:
        """Draw from these prompts alone, None: from all; in an order of their own, of which `began` is the first position."""
        self._among, self._began = numbers, began
        self._order = SequenceOrder(self.file.samples if numbers is None else len(numbers), self._seed)

    @property
    def epochs(self) -> float:
        """Epochs consumed, with the fraction of the current one."""
        return self.position / self.file.samples

    def next_group(self, share: int | None = None) -> list[Prompt]:
        """Return this rank's prompts of the next group: `share` of them, or an equal part of `prompts`."""
        share = self.prompts // self.world if share is None else share
        numbers = self._order(self.position - self._began + self.rank * share, share)
        self.position += share * self.world
        return [self.file.prompt(int(number)) for number in (numbers if self._among is None else self._among[numbers])]

    def seek(self, position: int) -> None:
        """Go to a position, as of `position`."""
        assert position >= 0
        self.position = position


@dataclass(frozen=True)
class _Read:
    """A record: where it stands, the prompt, the answer and the rest; side: as of `Conversation`. names: of prompt and answer."""

    where: str
    prompt: str | list[Message]
    answer: Any
    data: dict[str, Any]
    side: int | None = None
    names: tuple[str, str | None] | None = None

    @property
    def key(self) -> int:
        """xxh3-64 of the prompt, which decides the split."""
        if self.side is not None:
            return self.side
        return xxhash.xxh3_64_intdigest(json.dumps(self.prompt, ensure_ascii=False, sort_keys=True).encode("utf-8", "replace"))


def write_prompts(
    recipe: Recipe, files: Sequence[CorpusFile], folder: Path, check_space: Callable[[int], None], report: Progress
) -> Written:
    """Write ids, records and tokenizer of both splits into the folder.

    Raises:
        UserError: a record has no prompt, or an answer that others have is missing; no prompt is short enough.
    """
    corpus = recipe.data.corpus
    assert isinstance(corpus, PromptCorpus)
    # A GPT made here knows sums as its corpus writes them (H12+34B), a model that chats as questions.
    plain_sums = corpus.arithmetic is not None and corpus.template in ("auto", "plain") and not _chats(recipe, corpus)
    tasks = None if corpus.kernels is None else TaskReader(corpus.kernels, recipe.seed, asking=True)
    # Read twice, before and while writing: prompts need not fit into memory.
    found = _survey(recipe, corpus, _read(corpus, files, recipe.seed, plain_sums, tasks))
    check_space(found.bytes * 8)
    tokenizer = _tokenizer(recipe, corpus, lambda: _read(corpus, files, recipe.seed, plain_sums), found, report)
    template = choose_template(corpus.template, tokenizer, fallback="plain")
    tokenizer.save(folder / "tokenizer.json")
    overlong = done = 0
    names = Counter[tuple[str, str | None]]()
    with ExitStack() as stack:
        written = stack.enter_context(SplitWriter(folder, STORED))
        lines = [stack.enter_context(open(folder / f"{name}.jsonl", "w", encoding="utf-8")) for name in NAMES]
        for batch in batches(_read(corpus, files, recipe.seed, plain_sums), _AT_ONCE):
            for read, ids in zip(batch, _encode(template, corpus, batch), strict=True):
                if corpus.prompt_tokens is not None and len(ids) > corpus.prompt_tokens:
                    overlong += 1
                    continue
                held_out = read.key < found.threshold
                names.update([read.names] if read.names is not None else ())
                kept = {"prompt": read.prompt, "answer": read.answer, "data": read.data}
                if read.names is not None:
                    kept["answer_key"] = read.names[1]
                line = json.dumps(kept, ensure_ascii=True)
                written.add(NAMES[held_out], pack_ids(ids, np.zeros(len(ids), dtype=bool)), 1, len(line))
                lines[held_out].write(line + "\n")
            done += len(batch)
            report(0.3 + 0.69 * done / found.documents, f"tokenizing: {done:,} prompts")
        splits = written.close()
    checked = {name: replace(split, records=file_checksum(folder / f"{name}.jsonl")) for name, split in splits.items()}
    notes = [f"chat template: {template.name}", *map(_named, names), *found.notes, *(tasks.notes() if tasks is not None else ())]
    if overlong:
        notes.append(f"{overlong:,} prompts are longer than data.corpus.prompt_tokens={corpus.prompt_tokens} and were left out")
    return Written(tokenizer, checked, Counter(), notes, tasks.facts() if tasks is not None else {})


def _named(names: tuple[str, str | None]) -> str:
    """Say where prompts and answers were found."""
    prompt, answer = names
    return f"prompts: {prompt}; right answers: {answer or 'none; data.corpus.answer_key names where they are'}"


def _chats(recipe: Recipe, corpus: PromptCorpus) -> bool:
    """Return whether prompts are put as questions to a model that chats."""
    if corpus.template == "auto" and recipe.data.tokenizer.kind == "folder":
        from .write import folder_tokenizer

        return folder_tokenizer(recipe).template is not None
    return corpus.template not in ("auto", "plain")


def _encode(template: ChatTemplate, corpus: PromptCorpus, batch: Sequence[_Read]) -> list[Array]:
    asking = []
    for read in batch:
        messages = [{"role": "user", "content": read.prompt}] if isinstance(read.prompt, str) else read.prompt
        if corpus.system is not None and messages[0]["role"] not in ("system", "developer"):
            messages = [{"role": "system", "content": corpus.system}, *messages]
        asking.append(messages)
    try:
        return template.encode_prompts(asking)
    except UserError as error:
        raise UserError(f"{batch[0].where} or one of the {len(batch)} prompts from there: {error.message}", error.fix) from None
    except Exception as error:  # Jinja's, or what the template itself raises
        what = f"{batch[0].where} or one of the {len(batch)} prompts from there: the chat template refuses it: {error}"
        raise UserError(what, "mend the record, or choose another data.corpus.template") from None


def _read(
    corpus: PromptCorpus, files: Sequence[CorpusFile], seed: int, plain_sums: bool, tasks: TaskReader | None = None
) -> Iterator[_Read]:
    if corpus.arithmetic is not None:
        yield from _sums(corpus.arithmetic, seed, plain_sums)
        return
    if corpus.kernels is not None:
        tasks = TaskReader(corpus.kernels, seed, asking=True) if tasks is None else tasks
        yield from (_Read(task.where, task.prompt, None, task.record, task.side) for task in tasks.read())
        return
    if corpus.exercises is not None:
        for number, one in enumerate(draw_exercises(corpus.exercises, seed), 1):
            yield _Read(f"exercise {number:,}", one.prompt, one.answer, one.record, one.side)
        return
    answered: bool | None = None
    for file in files:
        for number, record in records(file.path, form_of(file.path, "records")):
            where = f"{file.path}:{number}"
            read = _record(where, record, corpus)
            if answered is None:
                answered = read.answer is not None
            # A reward without an answer would count a prompt as wrong for good.
            if answered != (read.answer is not None):
                what = "no answer, and the records before have one" if answered else "an answer, and the records before have none"
                raise UserError(f"{where}: it has {what}", "give every record an answer, or none")
            yield read


def _record(where: str, record: dict[str, Any], corpus: PromptCorpus) -> _Read:
    key, prompt = find_prompt(where, record, corpus)
    answer_key, answer = find_answer(where, record, corpus)
    rest = {k: as_json(f"{where}: {k}", v) for k, v in record.items() if k not in (key, answer_key)}
    return _Read(where, prompt, as_json(f"{where}: {answer_key}", answer), rest, names=(key, answer_key))


def _sums(corpus: ArithmeticCorpus, seed: int, plain: bool) -> Iterator[_Read]:
    """Yield generated sums: as the arithmetic corpus writes them, or as questions."""
    for number, (question, problem) in enumerate(questions(corpus, seed), 1):
        yield _Read(f"sum {number}", problem.prompt if plain else question, problem.answer, {})


def _survey(recipe: Recipe, corpus: PromptCorpus, all_read: Iterator[_Read]) -> Survey:
    found = Survey()
    for read in all_read:
        found.count(1, len(json.dumps(read.prompt)), key := read.key, key)
    if not found.documents:
        raise UserError("data.corpus: no prompt in its files", "give files with prompts in them")
    return split_by_key(found, recipe.data.validation, exactly=(corpus.kernels or corpus.exercises) is not None)


def _tokenizer(
    recipe: Recipe, corpus: PromptCorpus, read: Callable[[], Iterator[_Read]], found: Survey, report: Progress
) -> Tokenizer:
    wanted = recipe.data.tokenizer
    if not isinstance(wanted, CharacterTokenizer):
        return conversation_tokenizer(recipe, lambda: _texts(read()), found.bytes, report)
    if wanted.alphabet != "auto":
        return Characters(wanted.alphabet, wanted.unknown)
    if corpus.arithmetic is not None:
        # Not the characters met: a few sums may lack some that later ones have.
        return Characters("".join(sorted(ARITHMETIC_ALPHABET)), wanted.unknown)
    return Characters("".join(sorted({character for text in _texts(read()) for character in text})), wanted.unknown)


def prompt_texts(corpus: PromptCorpus, seed: int) -> Iterator[str]:
    """Yield what is asked, each with its answer. Raises UserError where a record has no prompt."""
    for read in _read(corpus, listed_files(corpus.files) if corpus.files else [], seed, plain_sums=True):
        yield "\n".join(_texts(iter([read])))


def _texts(all_read: Iterator[_Read]) -> Iterator[str]:
    """Yield prompts and answers, each a text of its own."""
    for read in all_read:
        yield read.prompt if isinstance(read.prompt, str) else "\n".join(m["content"] for m in read.prompt)
        if read.answer is not None:
            yield read.answer if isinstance(read.answer, str) else json.dumps(read.answer)


def prompt_records(corpus: PromptCorpus) -> Iterator[dict[str, Any]]:
    """Yield the records of a corpus's files as they stand. Raises UserError where a file cannot be read."""
    for file in listed_files(corpus.files):
        yield from (record for _, record in records(file.path, form_of(file.path, "records")))
