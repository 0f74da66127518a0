"""Prepare theses: read, check, split by time, write each split as JSON lines, and then as conversations are written."""

from __future__ import annotations

import datetime
import itertools
import json
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import xxhash

from windtunnel.recipe import ACTIONS, Periods, Recipe, ThesisCorpus, UserError

from .conversations import Conversation
from .corpus import CorpusFile
from .near_copies import NearCopies
from .samples import STORED, SampleWriter, batches, conversation_tokenizer, write_samples
from .templates import choose_template
from .theses import PRICES, REJECTS, SPLITS, Record, Rejected, Thesis, check_thesis, read_theses, today
from .theses_make import generated_records, simulate, write_prices
from .theses_read import conversation_reader, thesis_records
from .tokens import file_checksum
from .write import Progress, Split, Written

_SHOWN = 200
"""Characters of each text that a line of the rejects file keeps."""
_NAMED = 3
MOST_HELD = 200_000
"""Held-out theses of a split that are looked at for near copies."""
_AT_ONCE = 4096
# A sign for what could not be decoded; and UTF-8 that was read as Windows-1252, which turns é into Ã© and ’ into â€™.
_GARBLED = re.compile("\ufffd|[\xc3\xc2][\x80-\xbf]|\xe2\u20ac")
PURGED, OUTSIDE = "purged: in the gap between two periods", "outside all periods"


@dataclass
class Sorted:
    """What became of the records of a corpus.

    Attributes:
        read: records. kept: theses in each split. rejected: reason -> how many. examples: reason -> the first of them.
        labels: split -> action -> how many. first, last: days of all theses that were right, whichever the split.
        future: the earliest day that was rejected for lying in the future.
        bytes: of the questions and answers kept. lengths: characters of each reasoning. inputs: hashes of what is asked.
        told: hashes of the indicators. reasons: hashes of the reasoning. garbled: theses with text that was decoded
        wrongly, the first of them at `garbled_at`.
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
    bytes: int = 0
    lengths: array[int] = field(default_factory=lambda: array("I"))
    inputs: array[int] = field(default_factory=lambda: array("Q"))
    told: array[int] = field(default_factory=lambda: array("Q"))
    reasons: array[int] = field(default_factory=lambda: array("Q"))
    garbled: int = 0
    garbled_at: str = ""

    def keep(self, split: str, thesis: Thesis) -> None:
        """Count a thesis that is written."""
        self.kept[split] += 1
        self.labels[split][thesis.action] += 1
        self.tickers.add(thesis.ticker)
        self.bytes += len(thesis.instruction) + len(thesis.input) + len(thesis.output)
        self.lengths.append(len(thesis.reasoning))
        asked = f"{thesis.instruction}\n{thesis.input}"
        self.inputs.append(xxhash.xxh3_64_intdigest(asked.encode()))
        self.told.append(xxhash.xxh3_64_intdigest(json.dumps(thesis.indicators).encode()))
        self.reasons.append(xxhash.xxh3_64_intdigest(thesis.reasoning.encode()))
        if _GARBLED.search(thesis.reasoning) or _GARBLED.search(thesis.support):
            self.garbled += 1
            self.garbled_at = self.garbled_at or thesis.source

    def facts(self, periods: Periods) -> dict[str, Any]:
        """Return all of it as JSON values, for the report and the checks."""
        lengths = np.frombuffer(self.lengths, dtype=np.uint32)
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
            "reasoning_characters": {
                "shortest": int(lengths.min()), "median": int(np.median(lengths)), "longest": int(lengths.max()),
            },
            "stale_from": None if self.future is None else str(self.future),
        }  # fmt: skip


def _distinct(hashes: array[int]) -> int:
    return len(np.unique(np.frombuffer(hashes, dtype=np.uint64)))


def write_theses(
    recipe: Recipe,
    corpus: ThesisCorpus,
    files: Sequence[CorpusFile],
    folder: Path,
    check_space: Callable[[int], None],
    report: Progress,
) -> Written:
    """Write the theses of each split as .jsonl and .bin, rejects.jsonl, tokenizer.json and, of generated ones, the prices.

    Raises:
        UserError: a file cannot be read, a split is empty, or the template refuses a thesis.
    """
    assert recipe.data.split is not None
    check_space(2 * sum(file.size for file in files))
    periods = recipe.data.split.periods(corpus.forward_days)
    found = _sort_out(_records(corpus, files, recipe.seed, folder, report), corpus, periods, folder)
    _require_all(found, periods)
    copies = _copies(folder, found, report)
    expected = sum(found.kept.values())
    tokenizer = conversation_tokenizer(recipe, lambda: _texts(corpus, folder), found.bytes, report)
    template = choose_template(corpus.template, tokenizer, fallback="chatml")
    tokenizer.save(folder / "tokenizer.json")
    check_space(found.bytes * STORED.itemsize)
    parted = ((name, talk) for name in SPLITS for talk in _conversations(corpus, folder / f"{name}.jsonl"))
    splits, left_out = write_samples(template, corpus.loss, parted, expected, SampleWriter(folder, SPLITS), report)
    assert not left_out, "every thesis has an answer"
    checked = {
        name: Split(**{**vars(split), "records": file_checksum(folder / f"{name}.jsonl")}) for name, split in splits.items()
    }
    notes = [*_notes(found, periods), f"chat template: {template.described}; loss on {corpus.loss}"]
    return Written(tokenizer, checked, Counter(), notes, found.facts(periods) | {"near_copies": copies})


def _records(
    corpus: ThesisCorpus, files: Sequence[CorpusFile], seed: int, folder: Path, report: Progress
) -> Iterator[tuple[str, Record]]:
    """Yield the records of the files, or those generated, whose prices are written."""
    if corpus.files:
        yield from thesis_records(files, lambda share: report(0.2 * share, "reading theses"))
        return
    assert corpus.generated is not None
    report(0.0, "generating theses")
    market = simulate(corpus.generated, seed)
    write_prices(market, folder / PRICES)
    yield from generated_records(corpus.generated, market)


def _sort_out(all_records: Iterator[tuple[str, Record]], corpus: ThesisCorpus, periods: Periods, folder: Path) -> Sorted:
    """Check every record, and write it to the file of its split or to the rejects."""
    found, now = Sorted(), today()
    seen: dict[int, int] = {}
    with ExitStack() as stack:
        lines = {name: stack.enter_context(open(folder / f"{name}.jsonl", "w", encoding="utf-8")) for name in SPLITS}
        rejects = stack.enter_context(open(folder / REJECTS, "w", encoding="utf-8"))
        for source, record in all_records:
            found.read += 1
            try:
                thesis = check_thesis(record, source, now, corpus.instruction, own=corpus.inputs == "own")
                found.first, found.last = min(found.first, thesis.as_of), max(found.last, thesis.as_of)
                split = periods.split_of(thesis.as_of)
                if split not in SPLITS:
                    raise Rejected(PURGED if split == "purged" else OUTSIDE, str(thesis.as_of))
                _refuse_twice(thesis, seen)
            except Rejected as error:
                if error.reason == "date in the future":
                    day = datetime.date.fromisoformat(record["as_of_date"].strip())
                    found.future = min(found.future or day, day)
                _reject(error, source, record, found, rejects)
                continue
            lines[split].write(json.dumps(thesis.to_record(), ensure_ascii=False) + "\n")
            found.keep(split, thesis)
    return found


def _refuse_twice(thesis: Thesis, seen: dict[int, int]) -> None:
    """Reject a question that was asked before: of 64 bits, since a hundred million of them meet by chance once in 3,700."""
    question, answer = int(thesis.uid[:16], 16), xxhash.xxh3_64_intdigest(thesis.output.encode())
    before = seen.get(question)
    if before is not None:
        raise Rejected("duplicate" if before == answer else "same question as an earlier record, another answer", thesis.uid)
    seen[question] = answer


def _reject(error: Rejected, source: str, record: Record, found: Sorted, rejects: IO[str]) -> None:
    found.rejected[error.reason] += 1
    found.examples.setdefault(error.reason, f"{source}: {error.detail}" if error.detail else source)
    kept = {
        key: _cut(value) for key, value in record.items() if key in ("ticker", "as_of_date", "action", "reasoning", "support")
    }
    line = {"source": source, "reason": error.reason, "detail": error.detail, **kept}
    rejects.write(json.dumps(line, default=str) + "\n")


def _cut(value: Any) -> Any:
    return value[:_SHOWN] if isinstance(value, str) else value


def _require_all(found: Sorted, periods: Periods) -> None:
    """Refuse where a split has no thesis; say which days were read and why others were rejected."""
    empty = [name for name in SPLITS if not found.kept[name]]
    if not empty:
        return
    why = "; ".join(f"{count:,} {reason} ({found.examples[reason]})" for reason, count in found.rejected.most_common(_NAMED))
    rejected = f"; of {found.read:,} records {sum(found.rejected.values()):,} were rejected: {why}" if why else ""
    if found.first > found.last:
        what = "data.corpus: no thesis in it" if not found.read else "data.corpus: no record is a thesis"
        raise UserError(f"{what}{rejected}", "mend the records; docs/theses.md says what each must have")
    name = empty[0]
    raise UserError(
        f"data.split: no thesis is in the {name} period, {getattr(periods, name)}; those read are from {found.first} to "
        f"{found.last}{rejected}",
        "move data.split.test_start, or change data.split.validation_days",
    )


def _copies(folder: Path, found: Sorted, report: Progress) -> dict[str, Any]:
    """Find theses held out whose text is nearly that of one in training, or of test ones in validation."""
    held = {name: list(itertools.islice(_written(folder, name), MOST_HELD)) for name in SPLITS[1:]}
    finder, done = NearCopies(held["validation"] + held["test"]), 0
    for batch in batches(_written(folder, "train"), _AT_ONCE):
        finder.compare(batch)
        done += len(batch)
        report(0.2 + 0.1 * done / found.kept["train"], "looking for near copies")
    among = NearCopies(held["test"])
    among.compare(held["validation"])
    begin = len(held["validation"])
    pairs = {
        ("validation" if i < begin else "test", i if i < begin else i - begin): ("train", *hit) for i, hit in finder.found.items()
    }
    pairs = {("test", i): ("validation", *hit) for i, hit in among.found.items()} | pairs
    examples = [
        f"{name}.jsonl:{number + 1} is {similarity:.0%} the same as {other}.jsonl:{line + 1}"
        for (name, number), (other, line, similarity) in itertools.islice(sorted(pairs.items()), _NAMED)
    ]
    count = Counter(name for name, _ in pairs)
    return {
        "validation": count["validation"], "test": count["test"], "examples": examples,
        "compared": {name: len(texts) for name, texts in held.items()},
    }  # fmt: skip


def _written(folder: Path, split: str) -> Iterator[str]:
    """Yield the texts of a split: reasoning and support."""
    for thesis in read_theses(folder / f"{split}.jsonl"):
        yield f"{thesis.reasoning} {thesis.support}"


def _notes(found: Sorted, periods: Periods) -> list[str]:
    notes = [f"{name}: {found.kept[name]:,} theses, {getattr(periods, name)}" for name in SPLITS]
    total = sum(found.rejected.values())
    if total:
        notes.append(f"{total:,} of {found.read:,} records left out, each with its reason in {REJECTS}:")
        notes += [f"  {count:,} {reason}, such as {found.examples[reason]}" for reason, count in found.rejected.most_common()]
    return notes


def _conversations(corpus: ThesisCorpus, file: Path) -> Iterator[Conversation]:
    """Yield the theses of a split as conversations: its file is in Alpaca's format."""
    yield from conversation_reader(corpus).read([CorpusFile(str(file), file.stat().st_size)])


def _texts(corpus: ThesisCorpus, folder: Path) -> Iterator[str]:
    for talk in _conversations(corpus, folder / "train.jsonl"):
        yield from (message["content"] for message in talk.messages)
