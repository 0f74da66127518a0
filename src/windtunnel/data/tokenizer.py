"""Tokenizers: what all share, and the character tokenizer. BOS is id 0 in every tokenizer made here."""

from __future__ import annotations

import codecs
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.recipe import UserError

from .documents import Array, DocumentBatch
from .tokens import token_dtype

BOS = 0


class UnknownCharacter(UserError, ValueError):
    """Text holds a character that the tokenizer's alphabet lacks."""

    def __init__(self, message: str, character: str, offset: int, fix: str | None = None) -> None:
        super().__init__(message, fix)
        self.character = character
        self.offset = offset


class Tokenizer(ABC):
    """Text to token ids and back. `pieces[i]` is the UTF-8 that token i stands for; special tokens stand for none.

    Attributes:
        bos: stands before every document; id 0, unless the tokenizer was made elsewhere.
        eos: ends an answer; BOS where the tokenizer has no other token for it.
        new_ids: tokens that were added to a model's own, one after the other behind them: its weights know nothing of them.
        new_pieces: of each new token, the ids whose rows its own rows begin as the mean of; none: all known ones.
    """

    kind: str
    bos: int = BOS
    eos: int = BOS
    new_ids: tuple[int, ...] = ()
    new_pieces: tuple[tuple[int, ...], ...] = ()

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = list(pieces)

    @property
    def vocab(self) -> int:
        """Return how many tokens are in use, BOS included."""
        return len(self.pieces)

    @property
    def known_ids(self) -> tuple[tuple[int, int], ...]:
        """Spans [first, end) of the ids that are tokens and not new."""
        return ((0, self.vocab),)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the type of ids in token files."""
        return token_dtype(self.vocab)

    @abstractmethod
    def encode(self, text: str, *, bos: bool = False) -> Array:
        """(n,) ids, uint16 (uint32 above 65,536 tokens), behind BOS if asked. Raises UnknownCharacter."""

    @abstractmethod
    def encode_documents(self, batch: DocumentBatch) -> tuple[Array, Array, Counter[str]]:
        """Ids of all documents one after the other without BOS, (n,) ids of each, and characters skipped."""

    @abstractmethod
    def save(self, path: str | Path) -> None:
        """Write everything `load_tokenizer` needs into one JSON file."""

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; BOS is dropped and bytes that are not UTF-8 become U+FFFD. Raises ValueError for an id out of range."""
        return b"".join(self.piece(int(i)) for i in ids).decode("utf-8", "replace")

    def decode_many(self, many: Sequence[Sequence[int]]) -> list[str]:
        """Return the texts of several sequences, each as `decode` does."""
        return [self.decode(ids) for ids in many]

    def piece(self, token: int) -> bytes:
        """Return the UTF-8 bytes of one token. Raises ValueError when out of range."""
        if not 0 <= token < len(self.pieces):
            raise ValueError(f"token id {token} is outside the vocabulary of {len(self.pieces)}")
        return self.pieces[token]

    def token_bytes(self) -> Array:
        """(vocab,) int64: UTF-8 bytes that each token stands for, 0 for BOS; the denominator of bits per byte."""
        return np.fromiter(map(len, self.pieces), dtype=np.int64, count=len(self.pieces))

    def _wide(self) -> Any:
        return np.uint16 if self.vocab <= 2**16 else np.uint32


class StreamDecoder:
    """Decodes token by token: characters split over several tokens appear once they are whole."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # A byte-level token may end inside a character, of which half would be shown as U+FFFD.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Return the text that this token completes, perhaps none."""
        return self._decoder.decode(self._tokenizer.piece(int(token)))

    def finish(self) -> str:
        """Return what is left at the end: U+FFFD for an unfinished character."""
        return self._decoder.decode(b"", final=True)


class Characters(Tokenizer):
    """One token per character: BOS is 0, the alphabet's i-th character (from 0) is i + 1."""

    kind = "character"

    def __init__(self, alphabet: str, unknown: str = "error") -> None:
        repeated = sorted(c for c, n in Counter(alphabet).items() if n > 1)
        if repeated:
            raise UserError(f"data.tokenizer.alphabet: {_show(repeated[0])} is given twice", "name every character once")
        surrogates = [c for c in alphabet if 0xD800 <= ord(c) <= 0xDFFF]
        if surrogates:
            raise UserError(f"data.tokenizer.alphabet: {_show(surrogates[0])} is half of a surrogate pair, not a character")
        super().__init__([b"", *(c.encode() for c in alphabet)])
        self.alphabet = alphabet
        self.unknown = unknown
        # No character is token 0 (that is BOS), so 0 in the table means unknown. The last row stands for all above it.
        self._table = np.zeros(max(128, max(map(ord, alphabet), default=0) + 2), dtype=self.dtype)
        for i, character in enumerate(alphabet):
            self._table[ord(character)] = i + 1

    def encode(self, text: str, *, bos: bool = False) -> Array:
        """Return the ids of a text, (n,), BOS before them where asked for. Raises UnknownCharacter."""
        ids = self._lookup(_code_points(text))
        unknown = np.flatnonzero(ids == BOS)
        if len(unknown):
            offset = int(unknown[0])
            character = text[offset]
            message = f"character {_show(character)} at offset {offset} is not in the model's alphabet {self._shown_alphabet()}"
            raise UnknownCharacter(message, character, offset, "use only characters of the alphabet")
        ids = ids.astype(self._wide())
        return np.concatenate([np.array([BOS], ids.dtype), ids]) if bos else ids

    def encode_documents(self, batch: DocumentBatch) -> tuple[Array, Array, Counter[str]]:
        """Return the ids of all documents one after the other, how many each has, and the characters that were skipped.

        Raises:
            UnknownCharacter: a character is outside the alphabet, and such are not skipped.
        """
        raw = batch.text
        if not len(raw) or int(raw.max()) < 128:
            codes, starts = raw, batch.starts
        else:
            codes = _code_points(raw.tobytes().decode())
            # A character begins at every byte that is not a continuation byte.
            before = np.zeros(len(raw) + 1, dtype=np.int64)
            np.cumsum((raw & 0xC0) != 0x80, out=before[1:])
            starts = before[batch.starts]
        ids = self._lookup(codes)
        known = ids != BOS
        if known.all():
            return ids, np.diff(starts), Counter()
        if self.unknown == "error":
            self._refuse(batch, starts, codes, int(np.argmin(known)))
        values, counts = np.unique(codes[~known], return_counts=True)
        skipped = Counter({chr(int(v)): int(n) for v, n in zip(values, counts, strict=True)})
        kept = np.zeros(len(known) + 1, dtype=np.int64)
        np.cumsum(known, out=kept[1:])
        return ids[known], np.diff(kept[starts]), skipped

    def save(self, path: str | Path) -> None:
        """Write alphabet and kind as JSON, which `load_tokenizer` reads."""
        content = {"kind": self.kind, "alphabet": self.alphabet, "unknown": self.unknown, "bos": BOS}
        Path(path).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    def _lookup(self, codes: Array) -> Array:
        # uint8 codes (ASCII) always fit the table of at least 128 rows.
        return np.take(self._table, codes, mode="clip")

    def _refuse(self, batch: DocumentBatch, starts: Array, codes: Array, at: int) -> None:
        index = int(np.searchsorted(starts, at, side="right")) - 1
        character, offset = chr(int(codes[at])), at - int(starts[index])
        where = batch.locate(index, offset)
        raise UnknownCharacter(
            f"{where}: character {_show(character)} is not in data.tokenizer.alphabet {self._shown_alphabet()}",
            character,
            offset,
            "add it to data.tokenizer.alphabet, or --set data.tokenizer.alphabet=auto, or --set data.tokenizer.unknown=skip",
        )

    def _shown_alphabet(self) -> str:
        shown = self.alphabet if len(self.alphabet) <= 64 else self.alphabet[:64] + "..."
        return f"{shown!r} ({len(self.alphabet)} characters)"


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Read a tokenizer saved by `save` (a file, or a folder with tokenizer.json).

    Raises:
        UserError: the file is missing, unreadable or not a tokenizer.
    """
    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content.get("kind") == "character":
            return Characters(content["alphabet"], content.get("unknown", "error"))
        if content.get("kind") == "folder":
            from .subwords import Folder

            return Folder.from_content(content)
        if "model" not in content:
            raise ValueError("neither a character tokenizer nor a Hugging Face tokenizers file")
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"tokenizer {file} cannot be read: {error}") from None
    from .bpe import BPE

    return BPE.from_file(file)


def _code_points(text: str) -> Array:
    # surrogatepass: half a surrogate pair (JSON can hold one) is then an unknown character, not a crash.
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.dtype("<u4"))


def _show(character: str) -> str:
    return f"{character!r} (U+{ord(character):04X})"
