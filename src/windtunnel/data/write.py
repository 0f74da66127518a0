"""Tokenize a corpus into its two splits, several batches at a time, in order."""

from __future__ import annotations

import json
import os
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from windtunnel.recipe import (
    ArithmeticCorpus,
    BPETokenizer,
    CharacterTokenizer,
    FolderTokenizer,
    HuggingFaceModel,
    MissingModel,
    Recipe,
    TextCorpus,
    UserError,
    find_model,
    is_folder_name,
    near_folders,
)

from .arithmetic import chunks, generate
from .corpus import CorpusFile
from .documents import GOLDEN, Array, DocumentBatch, mix
from .survey import Survey, survey_arithmetic, survey_text, text_batches
from .tokenizer import Characters, Tokenizer
from .tokens import TokenWriter

if TYPE_CHECKING:
    from .subwords import Folder

STRETCH = 64 << 10  # bytes that a sample takes of a document at a time
NAMES = ("train", "validation")
NOISY_TOKENS = 20_000  # held out: with fewer, a loss says little of small gains
T = TypeVar("T")
R = TypeVar("R")
MakeBatch = Callable[[], DocumentBatch]
Surveyed = tuple[Survey, Callable[[], Iterator[MakeBatch]]]
Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Split:
    """One split on disk: counts, and the xxh3-128 of its token file (and of the records beside it, where it has some)."""

    tokens: int
    documents: int
    bytes: int
    dtype: str
    checksum: str
    records: str | None = None


@dataclass(frozen=True)
class Written:
    """The outcome: the tokenizer, the splits, characters skipped, and of theses what was read, kept and rejected."""

    tokenizer: Tokenizer
    splits: dict[str, Split]
    skipped: Counter[str]
    notes: list[str]
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Part:
    """One batch as tokens: for training and for validation, ids and counts of documents and bytes."""

    ids: tuple[Array, Array]
    documents: tuple[int, int]
    bytes: tuple[int, int]
    skipped: Counter[str]


def write_splits(
    recipe: Recipe,
    files: list[CorpusFile],
    folder: Path,
    check_space: Callable[[int], None],
    report: Progress,
    tokenizer: Tokenizer | None = None,
) -> Written:
    """Write train.bin, validation.bin and tokenizer.json into the folder; tokenizer: one made before, or None."""
    surveyed = survey_corpus(recipe, files, report)
    tokenizer = tokenizer or document_tokenizer(recipe, [surveyed], report)
    tokenizer.save(folder / "tokenizer.json")
    found, batches = surveyed
    # A token stands for at least one byte, and every document adds BOS.
    check_space((found.bytes + found.documents) * tokenizer.dtype.itemsize)
    return _write(tokenizer, found, batches(), folder, report)


def survey_corpus(recipe: Recipe, files: list[CorpusFile], report: Progress) -> Surveyed:
    """Return what a corpus of documents holds, and how to go through it."""
    corpus, data = recipe.data.corpus, recipe.data
    separator = corpus.separator if isinstance(corpus, TextCorpus) else None
    if isinstance(corpus, ArithmeticCorpus):
        found = survey_arithmetic(corpus, recipe.seed, data.validation)
    else:
        found = survey_text(data, files, separator, lambda share: report(0.2 * share, "reading the corpus"))

    def batches() -> Iterator[MakeBatch]:
        if isinstance(corpus, ArithmeticCorpus):
            for first, count in chunks(corpus):
                yield partial(generate, corpus, recipe.seed, first, count)
        else:
            for batch in text_batches(files, separator, found.longest):
                yield partial(_as_it_is, batch)

    return found, batches


def _as_it_is(batch: DocumentBatch) -> DocumentBatch:
    return batch


class SplitWriter:
    """Writes the token files of the splits, and counts what is in them; as a context manager it closes them whatever happens."""

    def __init__(self, folder: Path, dtype: np.dtype[Any], names: Sequence[str] = NAMES) -> None:
        self._writers = {name: TokenWriter(folder / f"{name}.bin", dtype) for name in names}
        self._documents, self._bytes = Counter[str](), Counter[str]()

    def __enter__(self) -> SplitWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        for writer in self._writers.values():
            writer.abandon()

    def add(self, split: str, tokens: Array, documents: int, size: int) -> None:
        """Append the tokens of some documents, which have so many bytes of text."""
        self._writers[split].append(tokens)
        self._documents[split] += documents
        self._bytes[split] += size

    @property
    def tokens(self) -> int:
        """Return how many tokens have been written so far."""
        return sum(writer.count for writer in self._writers.values())

    @property
    def bytes(self) -> int:
        """Return how many bytes of text they stand for."""
        return self._bytes.total()

    def close(self) -> dict[str, Split]:
        """Flush the files. Raises UserError if one of them is empty."""
        splits = {}
        for name, writer in self._writers.items():
            if not self._documents[name]:
                raise UserError(f"data.corpus: the {name} split is empty", "raise data.validation, or add records")
            writer.close()
            splits[name] = Split(writer.count, self._documents[name], self._bytes[name], str(writer.dtype), writer.checksum)
        return splits


def _write(tokenizer: Tokenizer, found: Survey, batches: Iterable[MakeBatch], folder: Path, report: Progress) -> Written:
    skipped = Counter[str]()
    with SplitWriter(folder, tokenizer.dtype) as written:
        for part in ordered_map(lambda make: _tokenize(tokenizer, found.threshold, make()), batches):
            for i, name in enumerate(NAMES):
                written.add(name, part.ids[i], part.documents[i], part.bytes[i])
            skipped.update(part.skipped)
            share = min(1.0, written.bytes / max(1, found.bytes))
            report(0.3 + 0.69 * share, f"tokenizing: {written.tokens / 1e6:,.1f} M tokens")
        splits = written.close()
    for name, split in splits.items():
        if split.tokens < 2:
            raise UserError(
                f"the {name} split has no text left: {sum(skipped.values()):,} characters are not in data.tokenizer.alphabet",
                "--set data.tokenizer.alphabet=auto",
            )
    held_out = splits[NAMES[1]].tokens
    if held_out < NOISY_TOKENS:
        varies = f"{held_out:,} tokens are held out: their loss varies by some {held_out**-0.5:.1%}"
        found.notes.append(f"{varies}; raise data.validation, or give more text")
    return Written(tokenizer, splits, skipped, found.notes)


def _tokenize(tokenizer: Tokenizer, threshold: int, batch: DocumentBatch) -> _Part:
    """Return a batch's documents as ids behind BOS, split by key."""
    ids, lengths, skipped = tokenizer.encode_documents(batch)
    held_out = batch.keys < np.uint64(threshold)
    counts = lengths + 1
    out = np.full(int(counts.sum()), tokenizer.bos, dtype=tokenizer.dtype)
    text = np.ones(len(out), dtype=bool)
    text[np.cumsum(counts) - counts] = False
    out[text] = ids
    sizes = np.diff(batch.starts)
    number, size = int(held_out.sum()), int(sizes[held_out].sum())
    if number == 0:
        split = (out, out[:0])
    else:
        mask = np.repeat(held_out, counts)
        split = (out[~mask], out[mask])
    return _Part(split, (len(batch) - number, number), (int(sizes.sum()) - size, size), skipped)


def document_tokenizer(recipe: Recipe, surveyed: Sequence[Surveyed], report: Progress) -> Tokenizer:
    """Return the tokenizer that the recipe names, made from all of the corpora surveyed.

    Raises:
        UserError: as `folder_tokenizer`.
    """
    wanted = recipe.data.tokenizer
    if isinstance(wanted, FolderTokenizer):
        return folder_tokenizer(recipe)
    if isinstance(wanted, CharacterTokenizer):
        alphabet = "".join(sorted({c for found, _ in surveyed for c in found.alphabet})) if wanted.alphabet == "auto" else None
        return Characters(alphabet or wanted.alphabet, wanted.unknown)
    from .bpe import train_bpe

    share = sampled_share(wanted, sum(found.bytes for found, _ in surveyed), report)
    texts = (_training_texts(found, batches(), share) for found, batches in surveyed)
    tokenizer = train_bpe(chain.from_iterable(texts), wanted.vocab_size)
    notes = surveyed[0][0].notes
    if share < 1:
        key = f"data.tokenizer.sample_megabytes={wanted.sample_megabytes:g}"
        notes.append(f"the tokenizer learned from {share:.0%} of the text ({key})")
    if tokenizer.vocab < wanted.vocab_size:
        notes.append(f"the corpus gives a vocabulary of {tokenizer.vocab:,} tokens, not {wanted.vocab_size:,}")
    return tokenizer


def sampled_share(wanted: BPETokenizer, size: int, report: Progress) -> float:
    """Return the share of `size` bytes of text that a BPE is trained on, and report that it is."""
    share = min(1.0, wanted.sample_megabytes * 1e6 / max(1, size))
    report(0.2, "training the tokenizer" if share == 1 else f"training the tokenizer on {share:.0%} of the text")
    return share


def folder_tokenizer(recipe: Recipe) -> Folder:
    """Read the tokenizer that data.tokenizer.path or model.config names, hold it against the model's table, and add tokens.

    Raises:
        UserError: there is none, it cannot be read, it has ids that the model's table lacks, the model's weights were
            trained with other ids, or a text cannot be added.
    """
    from .added import add_tokens
    from .subwords import Folder

    wanted, model = recipe.data.tokenizer, recipe.model
    assert isinstance(wanted, FolderTokenizer)
    config = find_model(model.config) if isinstance(model, HuggingFaceModel) else None
    if wanted.path is None and config is None:
        named = model.config if isinstance(model, HuggingFaceModel) else None
        fix = "--set data.tokenizer.path=FOLDER, one with a tokenizer.json"
        if named is None:
            raise UserError("data.tokenizer.path: not given, and a model of kind gpt has no tokenizer of its own", fix)
        near = near_folders(named)
        nearest = f"nearest here: {', '.join(near)}; " if near else ""
        if is_folder_name(named):
            raise UserError(f"data.tokenizer.path: not given, and model.config: there is no folder {named}", nearest + fix)
        raise MissingModel(
            f"data.tokenizer.path: not given, and {named} is not on this machine",
            f"{nearest}windtunnel fetch {named} --only tokenizer (megabytes), or {fix}",
            named,
        )
    tokenizer = Folder.from_folder(wanted.path or str(config), "data.tokenizer.path" if wanted.path else "model.config")
    rows = table_rows(config)
    if config is not None and rows is not None:
        tokenizer.require_fits(rows, f"vocab_size in {config / 'config.json'}", own=wanted.path is None)
    # Random weights know no ids yet, and any tokenizer will do.
    begins = recipe.training[0].init_from if recipe.training else None
    if wanted.path and config is not None and begins is None and (config / "tokenizer.json").is_file():
        _require_same_ids(tokenizer, Folder.from_folder(str(config), "model.config"), wanted.path, config)
    return add_tokens(tokenizer, wanted.add, wanted.begin)


# Share of a model's own tokens that another tokenizer may lack or number otherwise: a few are renamed in fine-tuning.
OTHER_IDS = 0.01


def _require_same_ids(given: Folder, own: Folder, path: str, config: Path) -> None:
    """Refuse another model's tokenizer: each id would stand for another text than the weights learned."""
    ids, others = own.ids, given.ids
    differing = [text for text, number in ids.items() if others.get(text) != number]
    if len(differing) > OTHER_IDS * len(ids):
        first = min(differing, key=lambda text: ids[text])
        there = f"has id {others[first]:,}" if first in others else "is no token"
        raise UserError(
            f"data.tokenizer.path: {path} is another model's tokenizer: {first!r} {there} there, and has id {ids[first]:,} in "
            f"{config} ({len(differing):,} of {len(ids):,} tokens differ)",
            "--set data.tokenizer.path=null for the model's own, or begin with random weights: init_from: random",
        )


def table_rows(folder: Path | None) -> int | None:
    """Return the rows of a model's embedding table, as its folder's config.json says; None where nothing does."""
    try:
        content = json.loads((folder / "config.json").read_text(encoding="utf-8")) if folder is not None else {}
        found = content.get("vocab_size", content.get("text_config", {}).get("vocab_size"))
    except (OSError, ValueError, AttributeError):
        return None  # whoever builds the model names what is wrong with it
    return found if isinstance(found, int) else None


def _training_texts(found: Survey, batches: Iterable[MakeBatch], share: float) -> Iterator[str]:
    """Yield training documents: all of them, or the share asked for of their stretches, chosen by a hash of key and place."""
    for make in batches:
        batch = make()
        training = np.flatnonzero(batch.keys >= np.uint64(found.threshold))
        if share == 1:
            yield from (batch.document(int(i)) for i in training)
            continue
        pieces = -(-np.diff(batch.starts)[training] // STRETCH)
        document = np.repeat(training, pieces)
        place = np.arange(len(document)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        # By a hash, so that the sample is the same whatever the order of files and batches.
        drawn = mix(batch.keys[document] + place.astype(np.uint64) * GOLDEN)
        for i in np.flatnonzero(drawn < np.uint64(share * 2**64)):
            first = int(batch.starts[document[i]]) + STRETCH * int(place[i])
            last = min(first + STRETCH, int(batch.starts[document[i] + 1]))
            # A character that a stretch's end divides is left out.
            yield batch.text[first:last].tobytes().decode("utf-8", "ignore")


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered_map(work: Callable[[T], R], items: Iterable[T], *, threads: int | None = None) -> Generator[R, None, None]:
    """Do `work` over items in a few threads, results in order, only a few held at once. NumPy frees the interpreter lock."""
    threads = threads or min(8, cores())
    with ThreadPoolExecutor(threads, thread_name_prefix="tokenize") as pool:
        pending: deque[Future[R]] = deque()
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                # A few more than are worked on, so that no thread waits for the consumer; `Executor.map` would take in all items.
                if len(pending) > threads + 1:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
