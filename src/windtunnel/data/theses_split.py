"""Prepare theses: read, check, split by time, write each split as JSON lines, and then as conversations are written."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.recipe import Periods, Recipe, ThesisCorpus, UserError

from .children import in_processes, processes_for
from .conversations import Conversation, from_alpaca
from .corpus import CorpusFile
from .documents import Array
from .formats import line_parts, line_records
from .near_copies import MARK, NearCopies
from .samples import STORED, Stored, batches, conversation_tokenizer, store
from .templates import ChatTemplate, choose_template
from .theses import PRICES, REJECTS, SPLITS, today
from .theses_make import generated_records, simulate, write_prices
from .theses_read import read_parts, thesis_parts
from .theses_sort import MARKS, Checker, Sorted, sort_out, text_of
from .theses_xml import Undividable
from .tokenizer import load_tokenizer
from .tokens import file_checksum
from .write import Progress, Split, SplitWriter, Written

_NAMED = 3
MOST_HELD = 200_000  # held-out theses of a split that are looked at for near copies
_AT_ONCE = 4096


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
    # The lines of the splits, and their tokens.
    check_space(2 * sum(file.size for file in files))
    periods = recipe.data.split.periods(corpus.forward_days)
    found = _sorted(recipe, corpus, files, folder, report)
    _require_all(found, periods)
    copies = _copies(folder, found, report)
    tokenizer = conversation_tokenizer(recipe, lambda: _texts(corpus, folder), sum(found.bytes.values()), report)
    template = choose_template(corpus.template, tokenizer, fallback="chatml")
    tokenizer.save(folder / "tokenizer.json")
    check_space(sum(found.bytes.values()) * STORED.itemsize)
    encoder = Encoder(corpus, folder / "tokenizer.json")
    encoder.template = template
    splits = _tokenized(encoder, sum(found.kept.values()), folder, report)
    notes = [*_notes(found, periods), f"chat template: {template.described}; loss on {corpus.loss}"]
    return Written(tokenizer, splits, Counter(), notes, found.facts(periods) | {"near_copies": copies})


def _sorted(recipe: Recipe, corpus: ThesisCorpus, files: Sequence[CorpusFile], folder: Path, report: Progress) -> Sorted:
    """Return the records of the files, or those generated, whose prices are written, each in its split or among the rejects."""
    assert recipe.data.split is not None
    periods = recipe.data.split.periods(corpus.forward_days)
    checker = Checker(corpus.instruction, corpus.inputs == "own", periods, today())
    if not corpus.files:
        assert corpus.generated is not None
        report(0.0, "generating theses")
        market = simulate(corpus.generated, recipe.seed)
        write_prices(market, folder / PRICES)
        # To make a record takes longer than to check it, and is not divided.
        return sort_out(read_parts(generated_records(corpus.generated, market)), checker, folder, 1)

    def reading(share: float) -> None:
        report(0.2 * share, "reading theses")

    processes = processes_for(sum(file.size for file in files))
    try:
        return sort_out(thesis_parts(files, reading, divide=True), checker, folder, processes)
    except Undividable:
        return sort_out(thesis_parts(files, reading, divide=False), checker, folder, processes)


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
    marks = {name: np.fromfile(folder / f"{name}{MARKS}", MARK, MOST_HELD) for name in SPLITS[1:]}
    texts = {name: [text for lines, _ in _marked(folder, name, MOST_HELD) for text in _Texts(lines)] for name in SPLITS[1:]}
    finder, done = NearCopies(texts["validation"] + texts["test"], np.concatenate(list(marks.values()))), 0
    for lines, some in _marked(folder, "train"):
        finder.compare(_Texts(lines), some)
        done += len(lines)
        report(0.2 + 0.1 * done / found.kept["train"], "looking for near copies")
    among = NearCopies(texts["test"], marks["test"])
    among.compare(texts["validation"], marks["validation"])
    for name in SPLITS:
        (folder / f"{name}{MARKS}").unlink()
    begin = len(texts["validation"])
    pairs = {
        ("validation" if i < begin else "test", i if i < begin else i - begin): ("train", *hit) for i, hit in finder.found.items()
    }
    # A copy in training counts before one in validation.
    pairs = {("test", i): ("validation", *hit) for i, hit in among.found.items()} | pairs
    examples = [
        f"{name}.jsonl:{number + 1} is {similarity:.0%} the same as {other}.jsonl:{line + 1}"
        for (name, number), (other, line, similarity) in itertools.islice(sorted(pairs.items()), _NAMED)
    ]
    count = Counter(name for name, _ in pairs)
    return {
        "validation": count["validation"], "test": count["test"], "examples": examples,
        "compared": {name: len(part) for name, part in texts.items()},
    }  # fmt: skip


def _marked(folder: Path, split: str, most: int | None = None) -> Iterator[tuple[list[bytes], Array]]:
    """Lines of a split with their marks, a few thousand at a time."""
    with open(folder / f"{split}.jsonl", "rb") as lines, open(folder / f"{split}{MARKS}", "rb") as marks:
        for some in batches(itertools.islice(lines, most), _AT_ONCE):
            yield list(some), np.fromfile(marks, MARK, len(some))


class _Texts(Sequence[str]):
    """Texts that are read where they are looked at, which few are."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, at: Any) -> Any:
        record = json.loads(self._lines[at])
        return text_of(record["reasoning"], record["support"])


def _notes(found: Sorted, periods: Periods) -> list[str]:
    notes = [f"{name}: {found.kept[name]:,} theses, {getattr(periods, name)}" for name in SPLITS]
    total = sum(found.rejected.values())
    if total:
        notes.append(f"{total:,} of {found.read:,} records left out, each with its reason in {REJECTS}:")
        notes += [f"  {count:,} {reason}, such as {found.examples[reason]}" for reason, count in found.rejected.most_common()]
    return notes


@dataclass(frozen=True)
class Lines:
    """Some lines of a split's file; `number` is of the first."""

    file: Path
    number: int
    content: bytes

    def conversations(self, corpus: ThesisCorpus) -> Iterator[Conversation]:
        """Yield the theses as conversations: a split's file is in Alpaca's format."""
        system = [] if corpus.system is None else [{"role": "system", "content": corpus.system}]
        for number, record in line_records(str(self.file), self.number, self.content):
            # As `conversation_reader` does, whose checks every thesis has passed.
            yield Conversation(f"{self.file}:{number}", [*system, *from_alpaca(record)])


@dataclass
class Encoder:
    """Makes samples of a split's lines.

    Attributes:
        corpus: says how theses are asked.
        tokenizer: the file that it was saved in, which another process reads.
    """

    corpus: ThesisCorpus
    tokenizer: Path

    @cached_property
    def template(self) -> ChatTemplate:
        """What conversations are written by."""
        return choose_template(self.corpus.template, load_tokenizer(self.tokenizer), fallback="chatml")

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the template: a tokenizer is read anew."""
        return {"corpus": self.corpus, "tokenizer": self.tokenizer}

    def __call__(self, lines: Lines) -> Stored:
        """Return the samples. Raises UserError: the template refuses a thesis."""
        return store(self.template, self.corpus.loss, list(lines.conversations(self.corpus)))


def _tokenized(encoder: Encoder, expected: int, folder: Path, report: Progress) -> dict[str, Split]:
    """Write the samples of each split, and return what was written."""
    done = 0
    files = {name: folder / f"{name}.jsonl" for name in SPLITS}
    lines = (Lines(file, *part) for file in files.values() for part in line_parts(str(file)))
    processes = processes_for(sum(file.stat().st_size for file in files.values()))
    with SplitWriter(folder, STORED, SPLITS) as written, closing(in_processes(encoder, lines, processes)) as encoded:
        for part, samples in encoded:
            assert not samples.untaught, "every thesis has an answer"
            written.add(part.file.stem, samples.tokens, samples.count, samples.bytes)
            done += samples.count
            report(0.3 + 0.69 * min(1.0, done / expected), f"tokenizing: {written.tokens / 1e6:,.1f} M tokens")
        splits = written.close()
    return {name: replace(split, records=file_checksum(files[name])) for name, split in splits.items()}


def _texts(corpus: ThesisCorpus, folder: Path) -> Iterator[str]:
    for part in line_parts(str(folder / "train.jsonl")):
        for talk in Lines(folder / "train.jsonl", *part).conversations(corpus):
            yield from (message["content"] for message in talk.messages)
