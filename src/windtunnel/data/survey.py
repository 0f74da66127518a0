"""A first look at a corpus: its size, characters and the keys that divide it before it is tokenized, and samples of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from windtunnel.recipe import (
    ARITHMETIC_ALPHABET,
    ArithmeticCorpus,
    ConversationCorpus,
    CountedCorpus,
    Data,
    MixtureCorpus,
    PromptCorpus,
    Recipe,
    SudokuCorpus,
    TextCorpus,
    ThesisCorpus,
    UserError,
)

from .arithmetic import CHUNK, chunks, generate
from .conversations import ConversationReader
from .corpus import LARGEST_DOCUMENT, CorpusFile, corpus_files, listed_files, read_documents
from .documents import DocumentBatch, batch_of
from .formats import form_of

FEW_DOCUMENTS = 100  # a split by document needs some of each side
PIECE = 64 << 10  # bytes: some twenty pages, within which a model can still learn what belongs together
SMALLEST_PIECE = 4 << 10
END_OF_TEXT = "<|endoftext|>"  # between the documents of some published texts, such as TinyStories
_EXPECTED_ENOUGH = 50  # held-out documents expected, with which a split is empty once in 10**21


@dataclass
class Survey:
    """What a corpus holds. `threshold`: documents whose key is below it are the validation split. `mark`: looked for in them."""

    documents: int = 0
    bytes: int = 0
    lowest_key: int = 2**64 - 1
    highest_key: int = 0
    longest: int = LARGEST_DOCUMENT
    threshold: int = 0
    notes: list[str] = field(default_factory=list)
    characters: np.ndarray[Any, np.dtype[Any]] | None = None
    mark: str = ""
    marked: bool = False
    ends: int = 0  # END_OF_TEXT in documents that are cut

    @property
    def alphabet(self) -> str:
        """Return the characters met, sorted by code point."""
        assert self.characters is not None
        return "".join(map(chr, np.flatnonzero(self.characters)))

    def count(self, documents: int, size: int, lowest: int, highest: int) -> None:
        """Count documents of so many bytes in all, and their lowest and highest key."""
        self.documents += documents
        self.bytes += size
        self.lowest_key, self.highest_key = min(self.lowest_key, lowest), max(self.highest_key, highest)

    def add(self, batch: DocumentBatch) -> None:
        """Count a batch of documents."""
        self.count(len(batch), len(batch.text), int(batch.keys.min()), int(batch.keys.max()))
        self.marked = self.marked or (bool(self.mark) and self.mark.encode() in batch.text.tobytes())
        if self.longest < LARGEST_DOCUMENT:
            self.ends += batch.text.tobytes().count(END_OF_TEXT.encode())
        if self.characters is not None and len(batch.text):
            if int(batch.text.max()) < 128:
                self.characters[:128] |= np.bincount(batch.text, minlength=128)[:128] > 0
            else:
                codes = np.frombuffer(batch.text.tobytes().decode().encode("utf-32-le"), dtype=np.dtype("<u4"))
                self.characters[codes] = True


def survey_text(data: Data, files: list[CorpusFile], separator: str | None, progress: Callable[[float], None]) -> Survey:
    """Survey text files. With fewer than 100 documents, long ones are cut so that a split by document is possible.

    Pieces are then as long as the validation share of the corpus, but from 4 to 64 KiB.

    Raises:
        UserError: the corpus is empty or holds a single document that cannot be cut.
    """
    auto = data.tokenizer.kind == "character" and data.tokenizer.alphabet == "auto"
    total = sum(f.size for f in files)
    # Known without reading: each file is one document then.
    plain = separator is None and all(form_of(f.path, f.format) == "text" for f in files)
    few = plain and len(files) < FEW_DOCUMENTS
    piece = max(SMALLEST_PIECE, min(PIECE, int(total * data.validation)))
    mark = data.corpus.answer_after or "" if isinstance(data.corpus, TextCorpus) else ""

    def scan(longest: int) -> Survey:
        characters = np.zeros(0x110000, dtype=bool) if auto else None
        made = Survey(longest=longest, characters=characters, mark=mark)
        for batch in text_batches(files, separator, longest):
            made.add(batch)
            progress(min(1.0, made.bytes / total))
        return made

    found = scan(piece if few else LARGEST_DOCUMENT)
    if not few and found.documents < FEW_DOCUMENTS:
        found, few = scan(piece), True
    if few:
        found.notes.append(f"fewer than {FEW_DOCUMENTS} documents: those longer than {piece:,} bytes are cut into pieces")
        if plain and found.ends > 1:
            found.notes.append(
                f"{END_OF_TEXT} stands {found.ends:,} times in them and is trained on as text: "
                f"--set data.corpus.separator='{END_OF_TEXT}' makes documents of what it ends"
            )
    if found.documents == 0:
        raise UserError("data.corpus: no text in its documents", "give files, or a corpus, with text in them")
    if mark and not found.marked:
        raise UserError(
            f"data.corpus.answer_after: {mark!r} stands in none of the {found.documents:,} documents, so none has an answer",
            "give what their prompts end with, or leave it out",
        )
    return split_by_key(found, data.validation)


def survey_arithmetic(corpus: ArithmeticCorpus, seed: int, share: float) -> Survey:
    """Survey generated sums: the mean length from the first chunk; keys only where a split might come out empty."""
    batches = (generate(corpus, seed, *chunk) for chunk in chunks(corpus))
    first = next(batches)
    found = Survey()
    found.add(first)
    # Keys of sums are spread evenly, so that with more documents neither split comes out empty.
    if corpus.documents * share < _EXPECTED_ENOUGH:
        for batch in batches:
            found.add(batch)
    else:
        found.bytes = int(found.bytes / found.documents * corpus.documents)
        found.documents, found.lowest_key, found.highest_key = corpus.documents, 0, 2**64 - 1
    found.characters = np.zeros(128, dtype=bool)
    found.characters[list(ARITHMETIC_ALPHABET.encode())] = True
    return split_by_key(found, share)


def text_batches(files: list[CorpusFile], separator: str | None, longest: int) -> Iterator[DocumentBatch]:
    """Yield all documents of all files, in order."""
    for file in files:
        yield from read_documents(file, separator, longest)


def split_by_key(found: Survey, share: float, *, exactly: bool = False) -> Survey:
    """Set the threshold: the share asked for, moved only as far as gives each split one document.

    exactly: not moved, because another corpus has to be split alike; raises UserError where a split would be empty.
    """
    if found.lowest_key == found.highest_key:
        raise UserError(
            f"data.corpus: {found.documents:,} document(s) of {found.bytes:,} bytes in all, none different from the others;"
            " training and validation need at least one each",
            "add some that differ; a plain text is split into documents with data.corpus.separator",
        )
    wanted = int(share * 2**64)
    if exactly and not found.lowest_key < wanted <= found.highest_key:
        few = wanted <= found.lowest_key
        raise UserError(
            f"data.validation={share:g}: {'none' if few else 'all'} of {found.documents:,} tasks are held out",
            "raise data.validation" if few else "lower data.validation, or ask for more tasks",
        )
    found.threshold = min(max(wanted, found.lowest_key + 1), found.highest_key)
    if found.threshold != wanted:
        found.notes.append("the validation share was moved so that each split has a document")
    return found


MOST_FILES = 5_000
GENERATED = 4  # runs of generated documents


def sample_documents(recipe: Recipe, most_bytes: int) -> Iterator[DocumentBatch]:
    """Batches of documents as they stand in the files (none is cut) or are generated; about `most_bytes` at most.

    Of more text than that the beginnings of the files are read, an equal share of each; of generated
    documents four runs of 65,536 spread over the corpus.

    Raises:
        UserError: the corpus is only counted or has puzzles, or a file is missing, unreadable, binary or not UTF-8.
    """
    corpus = recipe.data.corpus
    if isinstance(corpus, CountedCorpus):
        raise UserError("data.corpus.kind: a counted corpus has no text to look at", "give text files")
    if isinstance(corpus, SudokuCorpus):
        raise UserError("data.corpus.kind: Sudoku has puzzles and no text to look at")
    if isinstance(corpus, ArithmeticCorpus):
        runs = min(GENERATED, -(-corpus.documents // CHUNK))
        for run in range(runs):
            first = corpus.documents * run // runs
            yield generate(corpus, recipe.seed, first, min(CHUNK, corpus.documents // runs))
        return
    if isinstance(corpus, MixtureCorpus):
        for source in corpus.sources:
            part = recipe.data.model_copy(update={"corpus": source.corpus})
            yield from sample_documents(recipe.model_copy(update={"data": part}), max(1, most_bytes // len(corpus.sources)))
        return
    if isinstance(corpus, ConversationCorpus | ThesisCorpus | PromptCorpus):
        yield from _said(corpus, recipe.seed, most_bytes)
        return
    files = corpus_files(corpus)
    files = files[:: -(-len(files) // MOST_FILES)]
    share = max(1, most_bytes // len(files)) if sum(file.size for file in files) > most_bytes else most_bytes
    separator = corpus.separator if isinstance(corpus, TextCorpus) else None
    for file in files:
        taken = 0
        for batch in read_documents(file, separator):
            yield batch
            taken += len(batch.text)
            if taken >= share:
                break


def _said(corpus: ConversationCorpus | ThesisCorpus | PromptCorpus, seed: int, most_bytes: int) -> Iterator[DocumentBatch]:
    """Yield what is said in the first conversations, stands in the first records of theses, or is asked, one document each."""
    if isinstance(corpus, PromptCorpus):
        from .prompts import prompt_texts

        texts = prompt_texts(corpus, seed)
    else:
        texts = _talks(corpus, seed) if isinstance(corpus, ConversationCorpus) else _theses(corpus, seed)
    taken = 0
    said: list[bytes] = []
    for text in texts:
        said.append(text.encode("utf-8", "replace"))
        taken += len(said[-1])
        if taken >= most_bytes:
            break
    if said:
        yield batch_of("data.corpus", said)


def _talks(corpus: ConversationCorpus, seed: int) -> Iterator[str]:
    for conversation in ConversationReader(corpus, seed).read(listed_files(corpus.files) if corpus.files else []):
        yield "\n\n".join(message["content"] for message in conversation.messages)


def _theses(corpus: ThesisCorpus, seed: int) -> Iterator[str]:
    """Yield the records as they are, whether they are theses or not."""
    from .theses_make import generated_records, simulate
    from .theses_read import thesis_records

    if corpus.files:
        found = thesis_records(listed_files(corpus.files, every_split=True), lambda share: None)
    else:
        assert corpus.generated is not None
        found = generated_records(corpus.generated, simulate(corpus.generated, seed))
    for _, record in found:
        yield "\n".join(str(value) for value in record.values())
