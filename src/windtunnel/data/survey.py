"""A first look at a corpus before it is tokenized: its size, its characters, and keys that make both splits non-empty."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from windtunnel.recipe import ARITHMETIC_ALPHABET, ArithmeticCorpus, Data, UserError

from .arithmetic import chunks, generate
from .corpus import LARGEST_DOCUMENT, CorpusFile, read_documents
from .documents import DocumentBatch
from .formats import form_of

FEW_DOCUMENTS = 100
PIECE = 64 << 10
SMALLEST_PIECE = 4 << 10
_EXPECTED_ENOUGH = 50


@dataclass
class Survey:
    """What a corpus holds. `threshold`: documents whose key is below it are the validation split."""

    documents: int = 0
    bytes: int = 0
    lowest_key: int = 2**64 - 1
    highest_key: int = 0
    longest: int = LARGEST_DOCUMENT
    threshold: int = 0
    notes: list[str] = field(default_factory=list)
    characters: np.ndarray[Any, np.dtype[Any]] | None = None

    @property
    def alphabet(self) -> str:
        """The characters met, sorted by code point."""
        assert self.characters is not None
        return "".join(map(chr, np.flatnonzero(self.characters)))

    def add(self, batch: DocumentBatch) -> None:
        """Count a batch of documents."""
        self.documents += len(batch)
        self.bytes += len(batch.text)
        self.lowest_key = min(self.lowest_key, int(batch.keys.min()))
        self.highest_key = max(self.highest_key, int(batch.keys.max()))
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
    few = separator is None and len(files) < FEW_DOCUMENTS and all(form_of(f.path, f.format) == "text" for f in files)
    piece = max(SMALLEST_PIECE, min(PIECE, int(total * data.validation)))
    found = _scan(files, separator, piece if few else LARGEST_DOCUMENT, auto, progress)
    if not few and found.documents < FEW_DOCUMENTS:
        found, few = _scan(files, separator, piece, auto, progress), True
    if few:
        found.notes.append(f"fewer than {FEW_DOCUMENTS} documents: those longer than {piece:,} bytes are cut into pieces")
    if found.documents == 0:
        raise UserError("data.corpus: no text in its files", "give files with text in them")
    return split_by_key(found, data.validation)


def survey_arithmetic(corpus: ArithmeticCorpus, seed: int, share: float) -> Survey:
    """Survey generated sums: the mean length from the first chunk; keys only where a split might come out empty."""
    batches = (generate(corpus, seed, *chunk) for chunk in chunks(corpus))
    first = next(batches)
    found = Survey()
    found.add(first)
    if corpus.documents * share < _EXPECTED_ENOUGH:
        for batch in batches:
            found.add(batch)
    else:
        found.bytes = int(found.bytes / found.documents * corpus.documents)
        found.documents, found.lowest_key, found.highest_key = corpus.documents, 0, 2**64 - 1
    found.characters = np.zeros(128, dtype=bool)
    found.characters[list(ARITHMETIC_ALPHABET.encode())] = True
    return split_by_key(found, share)


def _scan(files: list[CorpusFile], separator: str | None, longest: int, auto: bool, progress: Callable[[float], None]) -> Survey:
    found = Survey(longest=longest, characters=np.zeros(0x110000, dtype=bool) if auto else None)
    total = sum(f.size for f in files)
    for batch in text_batches(files, separator, longest):
        found.add(batch)
        progress(min(1.0, found.bytes / total))
    return found


def text_batches(files: list[CorpusFile], separator: str | None, longest: int) -> Iterator[DocumentBatch]:
    """All documents of all files, in order."""
    for file in files:
        yield from read_documents(file, separator, longest)


def split_by_key(found: Survey, share: float) -> Survey:
    """Set the threshold: the share asked for, moved only as far as gives each split one document."""
    if found.lowest_key == found.highest_key:
        raise UserError(
            f"data.corpus: {found.documents:,} document(s) of {found.bytes:,} bytes in all, none different from the others;"
            " training and validation need at least one each",
            "add text, or split it into documents with data.corpus.separator",
        )
    wanted = int(share * 2**64)
    found.threshold = min(max(wanted, found.lowest_key + 1), found.highest_key)
    if found.threshold != wanted:
        found.notes.append("the validation share was moved so that each split has a document")
    return found
