"""Byte-level BPE by Hugging Face tokenizers: any UTF-8 text can be encoded, and BOS is id 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from windtunnel.recipe import UserError

from .documents import Array, DocumentBatch
from .tokenizer import BOS, Tokenizer

if TYPE_CHECKING:
    import tokenizers

BOS_TEXT = "<|bos|>"
_FIX = "use the tokenizer.json that preparing the data wrote"
# GPT-4's way of cutting text into words (published with tiktoken), with numbers of at most two digits for small vocabularies.
_WORDS = r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"""


class BPE(Tokenizer):
    """A trained byte-level BPE. Text that spells out '<|bos|>' is encoded as ordinary text."""

    kind = "bpe"

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        inner.encode_special_tokens = True
        self._inner = inner
        super().__init__(_pieces(inner))

    @classmethod
    def from_file(cls, path: Path) -> BPE:
        """Read a Hugging Face tokenizer.json. Raises UserError if it is not a byte-level BPE with BOS as id 0."""
        import tokenizers

        try:
            inner = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"tokenizer {path} cannot be read: {error}") from None
        if inner.token_to_id(BOS_TEXT) != BOS:
            raise UserError(f"tokenizer {path}: expected {BOS_TEXT} as token 0", _FIX)
        try:
            return cls(inner)
        except KeyError:
            raise UserError(f"tokenizer {path}: not a byte-level BPE", _FIX) from None

    def encode(self, text: str, *, bos: bool = False) -> Array:
        # Half a surrogate pair has no UTF-8; it becomes '?', as Python writes it.
        clean = text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text
        ids = self._inner.encode(clean).ids
        return np.array([BOS, *ids] if bos else ids, dtype=self._wide())

    def encode_documents(self, batch: DocumentBatch) -> tuple[Array, Array, Counter[str]]:
        encoded = [e.ids for e in self._inner.encode_batch_fast(batch.documents())]
        lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
        ids = np.fromiter((i for e in encoded for i in e), dtype=self.dtype, count=int(lengths.sum()))
        return ids, lengths, Counter()

    def save(self, path: str | Path) -> None:
        self._inner.save(str(path))


def train_bpe(texts: Iterable[str], vocab_size: int) -> BPE:
    """Train on texts. The vocabulary may come out smaller than asked when the texts are few."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    return BPE(inner)


def _pieces(inner: tokenizers.Tokenizer) -> list[bytes]:
    to_byte = _bytes_of_characters()
    words = [inner.id_to_token(i) for i in range(inner.get_vocab_size())]
    return [b"" if i == BOS else bytes(to_byte[c] for c in word or "") for i, word in enumerate(words)]


def _bytes_of_characters() -> dict[str, int]:
    """Byte-level BPE writes printable Latin-1 as itself and the other bytes, in order, as U+0100 onwards (GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
