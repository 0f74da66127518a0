"""Tokenizers through Hugging Face's library: what all of them share, and a model's own from its folder."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from windtunnel.recipe import UserError

from .documents import Array, DocumentBatch
from .tokenizer import BOS, Tokenizer

if TYPE_CHECKING:
    import tokenizers

    from .fast_bpe import FastBPE

# Small files that belong to a tokenizer and travel with it.
_BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja")
_LONG_ENOUGH = 4_000_000  # characters after which a second or two spent on making the tokenizer faster come back
# GPT-4's way of cutting text into words (published with tiktoken), with numbers of at most two digits for small vocabularies.
WORDS = r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"""


class Subwords(Tokenizer):
    """What both share: `tokenizers` does the work, and text that spells out a special token is ordinary text.

    Attributes:
        content: the library's JSON.
    """

    def __init__(self, inner: tokenizers.Tokenizer, pieces: list[bytes]) -> None:
        inner.encode_special_tokens = True
        self._inner = inner
        self.content = inner.to_str()
        self._read = 0
        super().__init__(pieces)

    def encode(self, text: str, *, bos: bool = False) -> Array:
        """Return the ids of a text, (n,) of the type of token files; BOS before them where asked for."""
        # Half a surrogate pair has no UTF-8; it becomes '?', as Python writes it.
        clean = text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text
        ids = self._inner.encode(clean, add_special_tokens=False).ids
        return np.array([self.bos, *ids] if bos else ids, dtype=self._wide())

    def encode_documents(self, batch: DocumentBatch) -> tuple[Array, Array, Counter[str]]:
        """Return the ids of all documents one after the other, how many each has, and no skipped characters."""
        encoded = [e.ids for e in self._inner.encode_batch_fast(batch.documents(), add_special_tokens=False)]
        lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
        ids = np.fromiter((i for e in encoded for i in e), dtype=self.dtype, count=int(lengths.sum()))
        return ids, lengths, Counter()

    def encode_marked(self, texts: Sequence[str]) -> list[tokenizers.Encoding]:
        """Encode texts in which special tokens count as such, as chat templates write them; nothing is added."""
        return list(self.marked.encode_batch(list(texts), add_special_tokens=False))

    def marked_ids(self, texts: Sequence[str]) -> list[bytes]:
        """Return the ids of `encode_marked`, a uint32 each, sooner."""
        self._read += sum(map(len, texts))
        fast = self._fast if self._read > _LONG_ENOUGH else None
        found = [fast.encode(text) if fast is not None else None for text in texts]
        left = [text for text, ids in zip(texts, found, strict=True) if ids is None]
        others = iter(self.marked.encode_batch_fast(left, add_special_tokens=False) if left else [])
        return [np.array(next(others).ids, dtype=np.uint32).tobytes() if ids is None else ids for ids in found]

    @cached_property
    def marked(self) -> tokenizers.Tokenizer:
        """The library's tokenizer, to which text that spells out a special token is that token."""
        import tokenizers

        made = tokenizers.Tokenizer.from_str(self.content)
        made.encode_special_tokens = False
        return made

    @cached_property
    def _fast(self) -> FastBPE | None:
        from .fast_bpe import FastBPE

        return FastBPE.of(self.content, [WORDS])

    def special_texts(self) -> list[str]:
        """Return the special tokens as text."""
        return [token.content for token in self._inner.get_added_tokens_decoder().values() if token.special]

    def token(self, text: str) -> int | None:
        """Return the id of a token by its text; None where there is none."""
        found: int | None = self._inner.token_to_id(text)
        return found

    def text_of(self, token: int) -> str:
        """Return a token as it is written in a template."""
        return str(self._inner.id_to_token(token))

    @cached_property
    def prefixes_space(self) -> bool:
        """Return whether a space is put before every text, as SentencePiece does: then text cannot be encoded in parts."""
        return b"".join(self.pieces[i] for i in self._inner.encode("y", add_special_tokens=False).ids) != b"y"

    @property
    def text_start(self) -> str:
        """Return what a chat template of ours begins with: BOS as text, if the tokenizer itself puts it before every text."""
        return ""


class Folder(Subwords):
    """A Hugging Face tokenizer read from a folder.

    Attributes:
        bos: the token that stands before every document: BOS where the tokenizer itself puts it before a text, else
            the end-of-text token, by which models without BOS were taught where a document begins.
        eos: the token that ends an answer.
        template: the chat template (Jinja), or None.
        special: texts of bos_token, eos_token, pad_token and unk_token, as far as the tokenizer has them.
        checksum: of everything read from the folder.
    """

    kind = "folder"

    def __init__(
        self, inner: tokenizers.Tokenizer, files: dict[str, str], new: Mapping[int, Sequence[int]] | None = None
    ) -> None:
        """Wrap a tokenizer.

        Args:
            inner: the tokenizer.
            files: contents of the small text files beside tokenizer.json, by name.
            new: tokens that were added, in the order of their ids, and the ids that their rows begin as the mean of.
        """
        self.files = files
        self.new_ids, self.new_pieces = tuple(new or {}), tuple(tuple(pieces) for pieces in (new or {}).values())
        settings = _json_object(files, "tokenizer_config.json")
        self.special = _special_texts(settings, _json_object(files, "special_tokens_map.json"))
        template = files.get("chat_template.jinja", settings.get("chat_template"))
        if isinstance(template, list):  # several, by name
            named = {entry["name"]: entry["template"] for entry in template}
            template = named.get("default")
        self.template: str | None = template if isinstance(template, str) and template.strip() else None
        super().__init__(inner, _any_pieces(inner))
        self.eos = self._id("eos_token", default=self._id("bos_token"))
        self.bos = self._before_documents()
        content = json.dumps([self.content, sorted(files.items()), *([self._new] if self.new_ids else [])])
        self.checksum = hashlib.sha256(content.encode()).hexdigest()[:32]

    def _id(self, name: str, default: int = BOS) -> int:
        found: int | None = self._inner.token_to_id(self.special[name]) if name in self.special else None
        return default if found is None else found

    def _before_documents(self) -> int:
        if self._adds_bos():
            return self._id("bos_token")
        # Qwen's, Llama's and SentencePiece's names of it.
        for text in ("<|endoftext|>", "<|end_of_text|>", "</s>"):
            if (found := self._inner.token_to_id(text)) is not None:
                return int(found)
        return self.eos

    def _adds_bos(self) -> bool:
        added = self._inner.encode("", add_special_tokens=True).ids
        return bool(added) and added[0] == self._id("bos_token", -1)

    @property
    def text_start(self) -> str:
        """Return what a rendered conversation begins with: BOS as text, if the tokenizer itself puts it before every text."""
        return self.special["bos_token"] if self._adds_bos() else ""

    @classmethod
    def from_folder(cls, folder: str | Path, key: str = "data.tokenizer.path") -> Folder:
        """Read a tokenizer from its folder; `key` of the recipe named it.

        Raises:
            UserError: the folder is missing or holds no tokenizer that can be read.
        """
        import tokenizers

        root = Path(folder).expanduser()
        if not root.is_dir():
            raise UserError(f"{key}: {folder} is not a folder", "give the folder that holds the model's tokenizer.json")
        files = {name: _read(root / name) for name in _BESIDE if (root / name).is_file()}
        try:
            if (root / "tokenizer.json").is_file():
                inner = tokenizers.Tokenizer.from_file(str(root / "tokenizer.json"))
            else:
                inner = _convert(root, key)
            # Tokenizer.json may hold the length that its author trained with, and text would be cut without a word.
            inner.no_truncation()
            inner.no_padding()
            return cls(inner, files)
        except UserError:
            raise
        except Exception as error:  # the libraries raise bare Exception
            raise UserError(f"{key}: the tokenizer in {root} cannot be read: {error}", "copy it again from the model") from None

    @classmethod
    def from_content(cls, content: dict[str, Any]) -> Folder:
        """Return the tokenizer that `save` wrote. Raises ValueError if it does not match its checksum."""
        import tokenizers

        inner = tokenizers.Tokenizer.from_str(content["tokenizer"])
        made = cls(inner, dict(content["files"]), dict(content.get("new", ())))
        if made.checksum != content["checksum"]:
            raise ValueError("it does not match its checksum")
        return made

    def save(self, path: str | Path) -> None:
        """Write tokenizer and files as one JSON file, which `load_tokenizer` reads."""
        content: dict[str, Any] = {"kind": self.kind, "checksum": self.checksum, "tokenizer": self.content, "files": self.files}
        content |= {"new": self._new} if self.new_ids else {}
        Path(path).write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")

    @property
    def _new(self) -> list[tuple[int, tuple[int, ...]]]:
        return list(zip(self.new_ids, self.new_pieces, strict=True))

    def export(self, folder: str | Path) -> None:
        """Write tokenizer.json and the files beside it as transformers reads them."""
        root = Path(folder)
        root.mkdir(parents=True, exist_ok=True)
        self._inner.save(str(root / "tokenizer.json"))
        for name, text in self.files.items():
            (root / name).write_text(text, encoding="utf-8")

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids without special tokens, as the tokenizer's own decoder writes it. Raises ValueError when out of range."""
        return str(self._inner.decode(self._in_range(ids), skip_special_tokens=True))

    def decode_many(self, many: Sequence[Sequence[int]]) -> list[str]:
        """Return the texts of several sequences, made on all cores."""
        return list(map(str, self._inner.decode_batch([self._in_range(ids) for ids in many], skip_special_tokens=True)))

    def _in_range(self, ids: Iterable[int]) -> list[int]:
        listed = list(map(int, ids))
        # By the least and the largest: a look at each of the tokens of 256 answers took longer than decoding them.
        for token in (min(listed), max(listed)) if listed else ():
            self.piece(token)
        return listed

    @property
    def ids(self) -> dict[str, int]:
        """Return the id of every token, as the tokenizer spells them."""
        found: dict[str, int] = self._inner.get_vocab(with_added_tokens=True)
        return found

    @property
    def known_ids(self) -> tuple[tuple[int, int], ...]:
        """Spans [first, end) of the ids that are tokens and not new: a folder's may have gaps."""
        known = np.array(sorted(set(self.ids.values()) - set(self.new_ids)), dtype=np.int64)
        parts = np.split(known, np.flatnonzero(np.diff(known) != 1) + 1)
        return tuple((int(part[0]), int(part[-1]) + 1) for part in parts if len(part))

    def require_fits(self, rows: int, where: str, *, own: bool = False) -> None:
        """Refuse a model whose embedding table is smaller than the vocabulary.

        Args:
            rows: of the model's embedding table.
            where: what says so, for the message.
            own: the tokenizer is the model's own, so that what says so is to blame.

        Raises:
            UserError: an id of this tokenizer is outside the table.
        """
        if self.vocab <= rows:
            return
        if own:
            raise UserError(
                f"{where} is {rows}, and the tokenizer beside it has ids up to {self.vocab - 1}",
                "correct vocab_size to the rows of the weights' embedding; where the weights have no more rows than that, they"
                " lack the tokens' (transformers: resize_token_embeddings, then save_pretrained)",
            )
        raise UserError(
            f"the tokenizer has ids up to {self.vocab - 1} and the model's table has {rows} rows ({where})",
            "give the model's own tokenizer as data.tokenizer.path",
        )


def _any_pieces(inner: tokenizers.Tokenizer) -> list[bytes]:
    """Return the bytes of every id."""
    piece = TokenBytes(inner)
    return [piece.of(i) or b"" for i in range(max(inner.get_vocab(with_added_tokens=True).values(), default=-1) + 1)]


class TokenBytes:
    """The bytes that tokens stand for, as their tokenizer's decoder writes them.

    Byte-level characters, SentencePiece's '▁' for a space and '<0x0A>' for a byte, WordPiece's '##' for a word's further part.

    Attributes:
        spaced: the decoder puts a space before every word but a text's first; it is no part of `of`.
    """

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        self._inner, self._added = inner, inner.get_added_tokens_decoder()
        decoder = {} if inner.decoder is None else json.loads(inner.decoder.__getstate__())
        self._byte_level = '"ByteLevel"' in json.dumps(decoder)
        self._part: str | None = decoder.get("prefix") if decoder.get("type") == "WordPiece" else None
        self._to_byte = bytes_of_characters()
        self.spaced = inner.decoder is None or self._part is not None

    def of(self, token: int) -> bytes | None:
        """Return a token's bytes, none of an id without a token; None of a special token, which is left out of texts."""
        word: str = self._inner.id_to_token(token) or ""
        if token in self._added:
            return None if self._added[token].special else word.encode()
        if self._byte_level and all(c in self._to_byte for c in word):
            return bytes(self._to_byte[c] for c in word)
        if self._byte_level:
            return word.encode()
        if len(word) == 6 and word.startswith("<0x") and word.endswith(">"):
            return bytes([int(word[3:5], 16)])
        return (word.removeprefix(self._part) if self._part else word.replace("▁", " ")).encode()

    def continues(self, token: int) -> bool:
        """Return whether a token is a further part of a word."""
        return bool(self._part) and (self._inner.id_to_token(token) or "").startswith(str(self._part))


def _convert(root: Path, key: str) -> tokenizers.Tokenizer:
    """Build the tokenizer from older files (vocab and merges, SentencePiece) through transformers."""
    if not any((root / name).is_file() for name in ("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")):
        raise UserError(f"{key}: {root} holds no tokenizer (no tokenizer.json)", "copy tokenizer.json of the model into it")
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(root), local_files_only=True).backend_tokenizer


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"tokenizer file {path} cannot be read: {error}", "copy it again from the model") from None


def _json_object(files: dict[str, str], name: str) -> dict[str, Any]:
    content = json.loads(files.get(name, "{}"))
    return content if isinstance(content, dict) else {}


def _special_texts(*sources: dict[str, Any]) -> dict[str, str]:
    found = {}
    for source in reversed(sources):
        for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
            value = source.get(name)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found[name] = text
    return found


def bytes_of_characters() -> dict[str, int]:
    """Return the byte of each character: printable Latin-1 is itself, the other bytes are, in order, U+0100 onwards (GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
