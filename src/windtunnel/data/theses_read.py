"""Theses as files have them: records of XML, JSON lines, Parquet or saved datasets, as conversations and as questions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from windtunnel.recipe import ConversationCorpus, ThesisCorpus, UserError

from .conversations import ConversationReader
from .corpus import CorpusFile, listed_files
from .formats import form_of, line_parts, line_records, open_bytes, records
from .templates import choose_template
from .theses import Record, Rejected, Thesis, check_question, today
from .theses_xml import is_xml, xml_parts, xml_records
from .tokenizer import Tokenizer

# Names that files have had.
_SAME = {"as-of-date": "as_of_date", "as_of": "as_of_date"}
_TOGETHER = 500  # records handed to a process at once: a message each would take longer than the work
Source = tuple[str, Record]


class Part(Protocol):
    """Some records, one behind the other, that are read where they are needed."""

    def records(self) -> Iterator[Source]:
        """Yield (source, record)."""
        ...


@dataclass(frozen=True)
class LinesPart:
    """Lines of JSON; `number` is of the first."""

    path: str
    number: int
    content: bytes

    def records(self) -> Iterator[Source]:
        """Yield (source, record). Raises UserError."""
        for number, record in line_records(self.path, self.number, self.content):
            yield f"{self.path}:{number}", _renamed(record)


@dataclass(frozen=True)
class ReadPart:
    """Records that are read already."""

    found: tuple[Source, ...]

    def records(self) -> Iterator[Source]:
        """Yield (source, record)."""
        yield from self.found


def thesis_parts(files: Sequence[CorpusFile], report: Callable[[float], None], *, divide: bool) -> Iterator[Part]:
    """Yield every thesis in the files, unchecked, in parts that other processes can read: XML too if `divide`.

    `report` is called with the share of the files that is read.

    Raises:
        Undividable: XML is not such that it can be divided; the same may be read with divide=False.
        UserError: a file cannot be read as what it is.
    """
    for file, read in _with_report(files, report):
        read(0)
        if _is_xml(file):
            yield from xml_parts(file.path, read) if divide else read_parts(_of_xml(file.path, read))
        elif (form := form_of(file.path, "records")) == "jsonl":
            done = 0
            for number, lines in line_parts(file.path):
                done += len(lines)
                read(done)
                yield LinesPart(file.path, number, lines)
        else:
            yield from read_parts((f"{file.path}:{row}", _renamed(record)) for row, record in records(file.path, form))


def _of_xml(path: str, read: Callable[[int], None]) -> Iterator[Source]:
    yield from ((f"{path}:{line}", record) for line, record in xml_records(path, read))


def read_parts(found: Iterator[Source]) -> Iterator[ReadPart]:
    """Yield records in parts."""
    while part := tuple(itertools.islice(found, _TOGETHER)):
        yield ReadPart(part)


def thesis_records(files: Sequence[CorpusFile], report: Callable[[float], None]) -> Iterator[Source]:
    """Yield (source, record) of every thesis in the files, unchecked; arguments and errors as of `thesis_parts`."""
    for part in thesis_parts(files, report, divide=False):
        yield from part.records()


def _with_report(
    files: Sequence[CorpusFile], report: Callable[[float], None]
) -> Iterator[tuple[CorpusFile, Callable[[int], None]]]:
    """Each file, and what is called with the bytes of it that are read, decompressed."""
    total, done = max(1, sum(file.size for file in files)), 0
    for file in files:

        def read(size: int, before: int = done, whole: int = file.size) -> None:
            report((before + min(size, whole)) / total)

        yield file, read
        done += file.size


def _is_xml(file: CorpusFile) -> bool:
    with open_bytes(file.path) as opened:
        return is_xml(file.path, opened.read(512))


def _renamed(record: Record) -> Record:
    return {_SAME.get(key, key): value for key, value in record.items()}


def conversation_reader(corpus: ThesisCorpus) -> ConversationReader:
    """Return what reads theses as conversations: their records are in Alpaca's format."""
    plain = ConversationCorpus(files=["theses"], format="alpaca", template=corpus.template, system=corpus.system)
    return ConversationReader(plain, format="alpaca")


def read_questions(file: Path, corpus: ThesisCorpus) -> tuple[list[Thesis], list[str]]:
    """Return what the records of a file ask, and those that ask nothing, each with where it stands and why.

    Of a record only ticker, date and indicators are looked at, and the action where there is one. `corpus` says how
    theses are asked.

    Raises:
        UserError: the file cannot be read, or none of its records asks anything.
    """
    # Once for all: midnight may pass while a file is read.
    asked, rejected, now = [], [], today()
    try:
        listed = listed_files([str(file)], every_split=True) if file.is_dir() else [CorpusFile(str(file), file.stat().st_size)]
        for source, record in thesis_records(listed, lambda share: None):
            try:
                asked.append(check_question(record, source, now, corpus.instruction, own=corpus.inputs == "own"))
            except Rejected as error:
                rejected.append(f"{source}: {error}")
    except OSError as error:
        raise UserError(f"--file: {file} cannot be read: {error.strerror or error}", "give .xml or .jsonl with theses") from None
    except UserError as error:
        raise UserError(error.message.replace("data.corpus.files:", "--file:", 1), error.fix) from None
    if not asked:
        why = f"; the first: {rejected[0]}" if rejected else ""
        raise UserError(
            f"--file: {file} has no thesis to predict{why}",
            "a thesis has ticker, as_of_date and its indicators; see docs/theses.md",
        )
    return asked, rejected


def encode_questions(theses: Sequence[Thesis], corpus: ThesisCorpus, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Return the ids that a generator is given for each thesis, as training has them before the answer. Raises UserError."""
    reader, template = conversation_reader(corpus), choose_template(corpus.template, tokenizer, fallback="chatml")
    talks = [reader.conversation(thesis.source, thesis.to_record()) for thesis in theses]
    # Without the answer that `conversation` needs.
    return [tuple(ids.tolist()) for ids in template.encode_prompts([talk.messages[:-1] for talk in talks])]
