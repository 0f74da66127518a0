"""A byte-level BPE trained on a corpus: `tokenizers` learns the merges, `tiktoken` applies them to documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from windtunnel.recipe import UserError

from .documents import Array, DocumentBatch
from .fast_bpe import FastBPE
from .subwords import WORDS, Subwords, bytes_of_characters
from .tokenizer import BOS

if TYPE_CHECKING:
    import tokenizers

BOS_TEXT = "<|bos|>"
CHATML_START, CHATML_END = "<|im_start|>", "<|im_end|>"
_FIX = "use the tokenizer.json that preparing the data wrote"


class BPE(Subwords):
    """A byte-level BPE trained here. Text that spells out '<|bos|>' is encoded as ordinary text."""

    kind = "bpe"

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        super().__init__(inner, _pieces(inner))
        end = inner.token_to_id(CHATML_END)
        self.eos = end if end is not None else self.bos

    @classmethod
    def from_file(cls, path: Path) -> BPE:
        """Read a Hugging Face tokenizer.json. Raises UserError if it is not a byte-level BPE with BOS as id 0."""
        import tokenizers

        try:
            inner = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"tokenizer {path} cannot be read: {error}") from None
        # The loaders and checks find documents by BOS, and prepared files hold it as 0.
        if inner.token_to_id(BOS_TEXT) != BOS:
            raise UserError(f"tokenizer {path}: expected {BOS_TEXT} as token 0", _FIX)
        try:
            return cls(inner)
        except KeyError:
            raise UserError(f"tokenizer {path}: not a byte-level BPE", _FIX) from None

    def save(self, path: str | Path) -> None:
        """Write tokenizer.json."""
        self._inner.save(str(path))

    def encode_documents(self, batch: DocumentBatch) -> tuple[Array, Array, Counter[str]]:
        """Encode a batch by tiktoken where it gives the same ids; see `Tokenizer`."""
        fast = self._fast
        if fast is None or fast.words != WORDS:  # of these words both libraries are known to agree on every character
            return super().encode_documents(batch)
        encoded = [self._encode_plain(fast, text) for text in batch.documents()]
        lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
        ids = np.concatenate(encoded).astype(self.dtype) if encoded else np.empty(0, dtype=self.dtype)
        return ids, lengths, Counter()

    def _encode_plain(self, fast: FastBPE, text: str) -> Array:
        found = fast.encode_plain(text)
        if found is None:
            found = np.array(self._inner.encode(text, add_special_tokens=False).ids, dtype=np.uint32)
        return found


def train_bpe(texts: Iterable[str], vocab_size: int, special: Sequence[str] = ()) -> BPE:
    """Train on texts, which are gone through once. The vocabulary may come out smaller than asked when the texts are few.

    `special` are further special tokens, such as the markers of a chat template.
    """
    from tokenizers import pre_tokenizers, trainers

    inner = _untrained()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS_TEXT, *special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),  # every byte is a token, so that no text is unknown
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    return BPE(inner)


def _untrained() -> tokenizers.Tokenizer:
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    return inner


def _pieces(inner: tokenizers.Tokenizer) -> list[bytes]:
    to_byte = bytes_of_characters()
    special = inner.get_added_tokens_decoder()
    words = [inner.id_to_token(i) for i in range(inner.get_vocab_size())]
    return [b"" if i in special else bytes(to_byte[c] for c in word or "") for i, word in enumerate(words)]
