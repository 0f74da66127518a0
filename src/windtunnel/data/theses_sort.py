"""Check every record of theses, several parts at a time, and write it to the file of its split or to the rejects."""

from __future__ import annotations

import datetime
import json
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import xxhash

from windtunnel.recipe import ACTIONS, Periods

from .children import in_processes
from .documents import Array
from .near_copies import MARK, mark
from .theses import REJECTS, SPLITS, Record, Rejected, Thesis, check_thesis
from .theses_read import Part

MARKS = ".marks"  # beside a split's lines while it is prepared: what its near copies are found by
_SHOWN = 200  # characters of each text that a line of the rejects file keeps
_KEPT = ("ticker", "as_of_date", "action", "reasoning", "support")
# A sign for what could not be decoded; and UTF-8 that was read as Windows-1252, which turns é into Ã© and ’ into â€™.
_GARBLED = re.compile("\ufffd|[\xc3\xc2][\x80-\xbf]|\xe2\u20ac")
PURGED, OUTSIDE = "purged: in the gap between two periods", "outside all periods"
DUPLICATE, CONTRADICTION = "duplicate", "same question as an earlier record, another answer"


@dataclass(frozen=True)
class Refusal:
    """A record that is in no split: its place in its part, why, and its line of the rejects file."""

    place: int
    source: str
    reason: str
    detail: str
    line: str

    @classmethod
    def of(cls, place: int, source: str, record: Record, error: Rejected) -> Refusal:
        """Return what is written of a record."""
        kept = {key: _cut(value) for key, value in record.items() if key in _KEPT}
        line = {"source": source, "reason": error.reason, "detail": error.detail, **kept}
        return cls(place, source, error.reason, error.detail, json.dumps(line, default=str) + "\n")


def _cut(value: Any) -> Any:
    return value[:_SHOWN] if isinstance(value, str) else value


# Of each thesis: its place in the part, indices of its split and action, characters of reasoning, bytes of question and
# answer, whether text in it was decoded wrongly, and hashes: of 64 bits, since a hundred million of them meet by chance
# once in 3,700.
_ROW = np.dtype(
    [("place", "u4"), ("split", "u1"), ("action", "u1"), ("garbled", "?"), ("length", "u4"), ("size", "u4")]
    + [(name, "u8") for name in ("question", "answer", "asked", "told", "reasons")]
)


@dataclass
class Checked:
    """A part's records, checked.

    Attributes:
        read: records. first, last: days of those that are theses, whichever the split.
        future: the earliest day that was rejected for lying in the future.
        lines: of JSON, of each that is in a split. rows: (lines,) of _ROW, marks: (lines,) of MARK.
        tickers: theirs. refused: the others, in order.
    """

    read: int = 0
    first: datetime.date = datetime.date.max
    last: datetime.date = datetime.date.min
    future: datetime.date | None = None
    lines: list[bytes] = field(default_factory=list)
    rows: Array = field(default_factory=lambda: np.empty(0, _ROW))
    marks: Array = field(default_factory=lambda: np.empty(0, MARK))
    tickers: set[str] = field(default_factory=set)
    refused: list[Refusal] = field(default_factory=list)


@dataclass(frozen=True)
class Checker:
    """Checks the records of a part. Attributes are as of `check_thesis`."""

    instruction: str
    own: bool
    periods: Periods
    today: datetime.date

    def __call__(self, part: Part) -> Checked:
        """Return what became of a part's records, but for those that only an earlier part shows to be duplicates."""
        made, rows, texts = Checked(), [], list[str]()
        # Days repeat in every part, and finding a day's period takes longer than looking it up.
        splits: dict[datetime.date, str] = {}
        for place, (source, record) in enumerate(part.records()):
            made.read += 1
            try:
                thesis = check_thesis(record, source, self.today, self.instruction, own=self.own)
                day = thesis.as_of
                made.first, made.last = min(made.first, day), max(made.last, day)
                split = splits.get(day) or splits.setdefault(day, self.periods.split_of(day))
                if split not in SPLITS:
                    raise Rejected(PURGED if split == "purged" else OUTSIDE, str(day))
            except Rejected as error:
                if error.day is not None:
                    made.future = min(made.future or error.day, error.day)
                made.refused.append(Refusal.of(place, source, record, error))
                continue
            made.lines.append((json.dumps(thesis.to_record(), ensure_ascii=False) + "\n").encode())
            texts.append(text_of(thesis.reasoning, thesis.support))
            made.tickers.add(thesis.ticker)
            rows.append((place, SPLITS.index(split), *_row(thesis)))
        made.rows = np.array(rows, _ROW)
        made.marks = mark(texts)
        return made


def _row(thesis: Thesis) -> tuple[int, bool, int, int, int, int, int, int, int]:
    output, hashed = thesis.output, xxhash.xxh3_64_intdigest
    asked = f"{thesis.instruction}\n{thesis.input}"
    garbled = _is_garbled(thesis.reasoning) or _is_garbled(thesis.support)
    return (
        ACTIONS.index(thesis.action), garbled, len(thesis.reasoning), size_of(asked) - 1 + size_of(output),
        int(thesis.uid[:16], 16), hashed(output.encode()), hashed(asked.encode()),
        hashed(repr(thesis.indicators).encode()), hashed(thesis.reasoning.encode()),
    )  # fmt: skip


def text_of(reasoning: str, support: str) -> str:
    """Return what near copies are looked for by."""
    return f"{reasoning} {support}"


def size_of(text: str) -> int:
    """Return how many bytes a text has in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def _is_garbled(text: str) -> bool:
    return not text.isascii() and _GARBLED.search(text) is not None


@dataclass
class Sorted:
    """What became of the records of a corpus.

    Attributes:
        read: records. kept: theses in each split. rejected: reason -> how many. examples: reason -> the first of them.
        labels: split -> action -> how many. first, last: days of all theses that were right, whichever the split.
        future: the earliest day that was rejected for lying in the future.
        bytes: split -> of the questions and answers kept. sizes: bytes of each question and answer.
        lengths: characters of each reasoning. inputs: hashes of what is asked. told: hashes of the
        indicators. reasons: hashes of the reasoning.
        garbled: theses with text that was decoded wrongly, the first of them at `garbled_at`.
    """

    read: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    labels: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in SPLITS})
    tickers: set[str] = field(default_factory=set)
    first: datetime.date = datetime.date.max
    last: datetime.date = datetime.date.min
    future: datetime.date | None = None
    bytes: Counter[str] = field(default_factory=Counter)
    sizes: array[int] = field(default_factory=lambda: array("I"))
    lengths: array[int] = field(default_factory=lambda: array("I"))
    inputs: array[int] = field(default_factory=lambda: array("Q"))
    told: array[int] = field(default_factory=lambda: array("Q"))
    reasons: array[int] = field(default_factory=lambda: array("Q"))
    garbled: int = 0
    garbled_at: str = ""

    def keep(self, checked: Checked, kept: Array, refused: list[Refusal]) -> None:
        """Count a part, of which the rows `kept` are written and all other records are `refused`, in order."""
        self.read += checked.read
        self.first, self.last = min(self.first, checked.first), max(self.last, checked.last)
        self.future = min(filter(None, (self.future, checked.future)), default=None)
        rows = checked.rows[kept]
        counts = np.zeros((len(SPLITS), len(ACTIONS)), dtype=np.int64)
        np.add.at(counts, (rows["split"], rows["action"]), 1)
        for name, found in zip(SPLITS, counts.tolist(), strict=True):
            self.kept[name] += sum(found)
            self.labels[name].update(dict(zip(ACTIONS, found, strict=True)))
        self.tickers |= checked.tickers
        for number, name in enumerate(SPLITS):
            self.bytes[name] += int(rows["size"][rows["split"] == number].sum())
        for column, name in (
            (self.sizes, "size"),
            (self.lengths, "length"),
            (self.inputs, "asked"),
            (self.told, "told"),
            (self.reasons, "reasons"),
        ):
            column.frombytes(rows[name].tobytes())
        garbled = np.flatnonzero(checked.rows["garbled"] & kept)
        if len(garbled) and not self.garbled:
            self.garbled_at = json.loads(checked.lines[garbled[0]])["source_file"]
        self.garbled += len(garbled)
        for one in refused:
            self.rejected[one.reason] += 1
            self.examples.setdefault(one.reason, f"{one.source}: {one.detail}" if one.detail else one.source)

    def facts(self, periods: Periods) -> dict[str, Any]:
        """Return all of it as JSON values, for the report and the checks."""
        return {
            "read": self.read,
            "kept": {name: self.kept[name] for name in SPLITS},
            "rejected": dict(self.rejected.most_common()),
            "examples": self.examples,
            "periods": {name: str(getattr(periods, name)) for name in SPLITS},
            "test_start": str(periods.test.first),
            "labels": {name: {action: self.labels[name][action] for action in ACTIONS} for name in SPLITS},
            "tickers": len(self.tickers),
            "days": [str(self.first), str(self.last)],
            "distinct_inputs": _distinct(self.inputs),
            "distinct_indicators": _distinct(self.told),
            "distinct_reasoning": _distinct(self.reasons),
            "garbled": self.garbled,
            "garbled_at": self.garbled_at,
            "bytes": {name: self.bytes[name] for name in SPLITS},
            "thesis_bytes": _spread(self.sizes),
            "reasoning_characters": _spread(self.lengths),
            "stale_from": None if self.future is None else str(self.future),
        }  # fmt: skip


def _spread(lengths: array[int]) -> dict[str, int]:
    found = np.frombuffer(lengths, dtype=np.uint32)
    return {"shortest": int(found.min()), "median": int(np.median(found)), "longest": int(found.max())}


def _distinct(hashes: array[int]) -> int:
    return len(np.unique(np.frombuffer(hashes, dtype=np.uint64)))


def sort_out(parts: Iterator[Part], checker: Checker, folder: Path, processes: int) -> Sorted:
    """Check every record, in so many processes, and write it to the file of its split or to the rejects.

    The folder gets train.jsonl, validation.jsonl, test.jsonl and rejects.jsonl, and .marks beside each split.

    Raises:
        UserError: a record cannot be read.
        Undividable: a part of XML cannot be read apart from the others.
    """
    found = Sorted()
    seen: dict[int, int] = {}
    with ExitStack() as stack:
        files = [stack.enter_context(open(folder / f"{name}.jsonl", "wb")) for name in SPLITS]
        marks = [stack.enter_context(open(folder / f"{name}{MARKS}", "wb")) for name in SPLITS]
        rejects = stack.enter_context(open(folder / REJECTS, "w", encoding="utf-8"))
        for part, checked in in_processes(checker, parts, processes):
            twice = _twice(checked.rows, seen)
            kept = np.ones(len(checked.rows), dtype=bool)
            kept[list(twice)] = False
            refused = sorted([*checked.refused, *_again(part, checked, twice)], key=lambda one: one.place)
            rejects.writelines(one.line for one in refused)
            _write(checked, kept, files, marks)
            found.keep(checked, kept, refused)
    return found


def _twice(rows: Array, seen: dict[int, int]) -> dict[int, str]:
    """Return the theses whose question was asked before: row -> reason. Adds the others to `seen`, question -> answer."""
    twice = {}
    for number, (question, answer) in enumerate(zip(rows["question"].tolist(), rows["answer"].tolist(), strict=True)):
        if question in seen:
            twice[number] = DUPLICATE if seen[question] == answer else CONTRADICTION
        else:
            seen[question] = answer
    return twice


def _again(part: Part, checked: Checked, twice: dict[int, str]) -> list[Refusal]:
    """Return what is written of theses that are given twice: of their records as they are read, which is done again for it."""
    if not twice:
        return []
    # Duplicates are few: reading a part again is cheaper than keeping every record.
    read = list(part.records())
    made = []
    for number, reason in twice.items():
        place = int(checked.rows["place"][number])
        uid = json.loads(checked.lines[number])["uid"]
        made.append(Refusal.of(place, *read[place], Rejected(reason, uid)))
    return made


def _write(checked: Checked, kept: Array, files: Sequence[IO[bytes]], marks: Sequence[IO[bytes]]) -> None:
    splits = checked.rows["split"]
    for number, (file, marked) in enumerate(zip(files, marks, strict=True)):
        wanted = np.flatnonzero(kept & (splits == number))
        file.writelines(checked.lines[i] for i in wanted.tolist())
        marked.write(checked.marks[wanted].tobytes())
