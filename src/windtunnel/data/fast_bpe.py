"""Byte-level BPE by tiktoken, which is several times as fast as Hugging Face's library, where it must give the same ids.

tiktoken merges the two neighbours whose bytes together are the token of the lowest id; Hugging Face's library merges by a
list of pairs. Both do the same if every token of several bytes is made by exactly one pair, of tokens with lower ids, the
pairs stand in the order of the ids of what they make, and the bytes of each token alone become that token. For take the first
step at which they differ: tiktoken joins (a, bc) to a token abc whose pair is (ab, c), and no pair of a lower id is left to
merge. No merge so far went over the ends of abc, so within it all went as it goes with these bytes alone; and there (ab, c) is
what is left before the last merge, not (a, bc).

Lines that stand in one text after the other, as names and figures do, are encoded once. No word of the cuts that end a run of
blanks at its last line end goes on behind a line end that a sign is behind, so what lies before it and behind it can be
encoded apart.

What is left to differ is how text is cut into words: only cuts that are known are taken, and only characters to which both
libraries' tables of Unicode give the same classes, which a test shows.
"""

from __future__ import annotations

import itertools
import json
import re
import unicodedata
from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .documents import Array

if TYPE_CHECKING:
    import tiktoken

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
_GPT4 = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
QWEN, LLAMA = _GPT4 % "", _GPT4 % "{1,3}"
# Latin, Greek, Cyrillic, punctuation, signs of money and mathematics, and the ideographs of Chinese and Japanese.
KNOWN = (
    (0x0000, 0x0377), (0x0384, 0x038A), (0x0390, 0x03A1), (0x03A3, 0x052F), (0x2000, 0x2064), (0x2070, 0x2071), (0x2074, 0x208E),
    (0x20A0, 0x20BF), (0x2100, 0x218B), (0x2190, 0x2426), (0x2460, 0x2B73), (0x3000, 0x303F), (0x3041, 0x3096), (0x3099, 0x30FF),
    (0x4E00, 0x9FEF), (0xAC00, 0xD7A3), (0xFF01, 0xFFBE), (0x1F300, 0x1F64F),
)  # fmt: skip
# Newer characters have other classes in one of the libraries than in the other.
_OTHER = re.compile(f"[^{''.join(f'{chr(first)}-{chr(last)}' for first, last in KNOWN)}]")
_SHORT_LINE, _SHORT_LINES_KEPT = 64, 1 << 15
# Characters of lines that are remembered, and how many of them: of long ones few, since most come only once.
_LONG_LINE, _LONG_LINES_KEPT = 4096, 64


class FastBPE:
    """The tokenizer of a tokenizer.json in tiktoken.

    Attributes:
        words: the regular expression that cuts text into words.
    """

    def __init__(
        self, inner: tiktoken.Encoding, words: str, added: Mapping[str, int], known: bytes, *, normal: bool, by_line: bool
    ) -> None:
        """Wrap tiktoken's.

        Args:
            inner: knows words only.
            words: how it cuts them.
            added: tokens that stand outside words.
            known: bytes that are tokens; without others a vocabulary may do.
            normal: text has to be in Unicode's normal form C.
            by_line: no word goes over the end of a line that a sign is behind.
        """
        self.words, self._inner = words, inner
        self._normal, self._by_line = normal, by_line
        self._added = {text: _stored([token]) for text, token in added.items()}
        self._known = None if len(known) == 256 else known
        self._short, self._long = lru_cache(_SHORT_LINES_KEPT)(self._encode), lru_cache(_LONG_LINES_KEPT)(self._encode)
        longest_first = sorted(map(re.escape, added), key=len, reverse=True)
        self._marks = re.compile(f"({'|'.join(longest_first)})" if added else r"((?!))")

    @classmethod
    def of(cls, content: str, known_words: Sequence[str]) -> FastBPE | None:
        """Return the tokenizer that a tokenizer.json describes; None where tiktoken might give other ids.

        `known_words` are ways to cut text into words, besides those of well-known models, that both libraries know.
        """
        described = json.loads(content)
        words = _words(described.get("pre_tokenizer"))
        normalizer = described.get("normalizer") or {"type": "Sequence", "normalizers": []}
        normal = normalizer["type"] == "NFC"
        added = {token["content"]: token["id"] for token in described["added_tokens"] if token["content"]}
        # Two expressions that look alike may cut some text otherwise: only those are taken that a test has compared.
        if words not in (GPT2, QWEN, LLAMA, *known_words) or not (normal or normalizer.get("normalizers") == []):
            return None
        if any(token[flag] for token in described["added_tokens"] for flag in ("lstrip", "rstrip", "single_word")):
            return None
        if normal and not all(unicodedata.is_normalized("NFC", text) for text in added):
            return None
        ranks = _ranks(described["model"], set(added))
        if ranks is None:
            return None
        import tiktoken

        inner = tiktoken.Encoding("", pat_str=words, mergeable_ranks=ranks, special_tokens={})
        known = bytes(byte for byte in range(256) if bytes([byte]) in ranks)
        return cls(inner, words, added, known, normal=normal, by_line=words != GPT2)

    def encode(self, text: str) -> bytes | None:
        """Return the ids of a text, a uint32 each, added tokens counting as such.

        None where only Hugging Face's library is sure of them.
        """
        if not text.isascii() and (_OTHER.search(text) or (self._normal and not unicodedata.is_normalized("NFC", text))):
            return None
        if not self._knows(text):
            return None
        ids: list[bytes] = []
        try:
            for number, piece in enumerate(self._marks.split(text)):
                if number % 2:
                    ids.append(self._added[piece])
                elif piece:
                    for line in _lines(piece) if self._by_line else (piece,):
                        size = len(line)
                        known = self._short if size <= _SHORT_LINE else self._long if size <= _LONG_LINE else self._encode
                        ids.append(known(line))
        except ValueError:  # its regular expressions give up on runs of very many blanks
            return None
        return b"".join(ids)

    def _encode(self, line: str) -> bytes:
        return _stored(self._inner.encode_ordinary(line))

    def encode_plain(self, text: str) -> Array | None:
        """Return the ids of a text in which nothing is special, whatever its characters; None where tiktoken gives up on it."""
        try:
            return self._inner.encode_to_numpy(text) if self._knows(text) else None
        except ValueError:  # its regular expressions give up on runs of a million blanks and the like
            return None

    def _knows(self, text: str) -> bool:
        return self._known is None or not text.encode().translate(None, self._known)


def _stored(ids: Sequence[int]) -> bytes:
    return array("I", ids).tobytes()


def _lines(text: str) -> list[str]:
    """Return a text cut behind each line end that is followed by a visible sign of ASCII."""
    if "\n" not in text:
        return [text]
    first, *others = text.split("\n")
    lines = [first]
    for line in others:
        lines[-1] += "\n"
        if " " < line[:1] < "\x7f":
            lines.append(line)
        else:
            lines[-1] += line
    return lines


def _words(cut: Any) -> str | None:
    """Return the regular expression that cuts text into words, before bytes become letters; None where it is not only that."""
    parts = cut["pretokenizers"] if cut and cut["type"] == "Sequence" else [cut or {"type": ""}]
    last = parts[-1]
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        return None
    if len(parts) == 1:
        return GPT2 if last.get("use_regex", True) else None
    split = parts[0]
    plain = split["type"] == "Split" and split["behavior"] == "Isolated" and not split["invert"]
    if len(parts) > 2 or last.get("use_regex", True) or not plain:
        return None
    found = split["pattern"].get("Regex")
    return found if isinstance(found, str) else None


def _ranks(model: dict[str, Any], added: set[str]) -> dict[bytes, int] | None:
    """Return the id of each token by its bytes; None where the order of ids does not tell how they are merged."""
    from .subwords import bytes_of_characters

    if model["type"] != "BPE" or any(model.get(k) for k in ("dropout", "continuing_subword_prefix", "end_of_word_suffix")):
        return None
    vocab: dict[str, int] = model["vocab"]
    to_byte = bytes_of_characters()
    pairs = [pair if isinstance(pair, list) else pair.split(" ") for pair in model["merges"]]
    made = [vocab.get("".join(pair), -1) for pair in pairs]
    below = all(max(vocab.get(a, one), vocab.get(b, one)) < one for (a, b), one in zip(pairs, made, strict=True))
    tokens = {text: i for text, i in vocab.items() if text not in added}
    if not below or any(a >= b for a, b in itertools.pairwise(made)):
        return None
    if len(tokens) != len(made) + sum(c in tokens for c in to_byte) or any(c not in to_byte for text in tokens for c in text):
        return None
    words = list(tokens)
    if [[tokens[word]] for word in words] != _merged(model, words):
        return None
    return {bytes(to_byte[c] for c in text): i for text, i in tokens.items()}


def _merged(model: dict[str, Any], words: list[str]) -> list[list[int]]:
    """Return the ids that words become by merging alone."""
    import tokenizers

    # Without ignore_merges, with which a word that is a token is not merged, so that nothing would be shown.
    bare: dict[str, Any] = {"version": "1.0", "added_tokens": [], "model": model | {"ignore_merges": False}}
    bare |= dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    inner = tokenizers.Tokenizer.from_str(json.dumps(bare))
    return [found.ids for found in inner.encode_batch_fast(words, add_special_tokens=False)]
