"""Theses as files have them: records of XML, JSON lines, Parquet or saved datasets, as conversations and as questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from windtunnel.recipe import ConversationCorpus, ThesisCorpus, UserError

from .conversations import ConversationReader
from .corpus import CorpusFile
from .formats import form_of, open_bytes, records
from .templates import choose_template
from .theses import Record, Rejected, Thesis, check_question, today
from .theses_xml import is_xml, xml_records
from .tokenizer import Tokenizer

_SAME = {"as-of-date": "as_of_date", "as_of": "as_of_date"}
_EVERY = 1_000


def thesis_records(files: Sequence[CorpusFile], report: Callable[[float], None]) -> Iterator[tuple[str, Record]]:
    """Yield (source, record) of every thesis in the files, unchecked.

    Args:
        files: JSON lines, Parquet, XML or one of the other forms that records come in.
        report: called with the share of the files that is read.

    Raises:
        UserError: a file cannot be read as what it is.
    """
    total, done = max(1, sum(file.size for file in files)), 0
    for file in files:
        with open_bytes(file.path) as opened:
            head = opened.read(512)

        def read(size: int, before: int = done, whole: int = file.size) -> None:
            report((before + min(size, whole)) / total)

        if is_xml(file.path, head):
            for line, record in xml_records(file.path, read):
                yield f"{file.path}:{line}", record
        else:
            for number, record in records(file.path, form_of(file.path, "records")):
                if number % _EVERY == 0:
                    report(done / total)
                yield f"{file.path}:{number}", {_SAME.get(key, key): value for key, value in record.items()}
        done += file.size


def conversation_reader(corpus: ThesisCorpus) -> ConversationReader:
    """Return what reads theses as conversations: their records are in Alpaca's format."""
    plain = ConversationCorpus(files=["theses"], format="alpaca", template=corpus.template, system=corpus.system)
    return ConversationReader(plain, format="alpaca")


def read_questions(file: Path, corpus: ThesisCorpus) -> tuple[list[Thesis], list[str]]:
    """Return what the records of a file ask, and those that ask nothing, each with where it stands and why.

    Args:
        file: XML, JSON lines, Parquet or a saved dataset; of a record only ticker, date and indicators are looked at, and the
            action where there is one.
        corpus: says how theses are asked.

    Raises:
        UserError: the file cannot be read, or none of its records asks anything.
    """
    try:
        listed = CorpusFile(str(file), file.stat().st_size)
    except OSError as error:
        raise UserError(f"--file: {file} cannot be read: {error.strerror or error}", "give .xml or .jsonl with theses") from None
    asked, rejected, now = [], [], today()
    for source, record in thesis_records([listed], lambda share: None):
        try:
            asked.append(check_question(record, source, now, corpus.instruction, own=corpus.inputs == "own"))
        except Rejected as error:
            rejected.append(f"{source}: {error}")
    if not asked:
        why = f"; the first: {rejected[0]}" if rejected else ""
        raise UserError(
            f"--file: {file} has no thesis to predict{why}",
            "a thesis has ticker, as_of_date and its indicators; see docs/data.md",
        )
    return asked, rejected


def encode_questions(theses: Sequence[Thesis], corpus: ThesisCorpus, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Return the ids that a generator is given for each thesis, as training has them before the answer. Raises UserError."""
    reader, template = conversation_reader(corpus), choose_template(corpus.template, tokenizer, fallback="chatml")
    talks = [reader.conversation(thesis.source, thesis.to_record()) for thesis in theses]
    return [tuple(ids.tolist()) for ids in template.encode_prompts([talk.messages[:-1] for talk in talks])]
