"""From text to tokens and back: our tokenizers and Hugging Face's behind one interface, and text as a client sees it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from windtunnel.data import StreamDecoder, Tokenizer
from windtunnel.recipe import UserError

Message = dict[str, Any]


@dataclass(frozen=True)
class TokenInfo:
    """One generated or echoed token.

    Attributes:
        token: its id.
        offset: where its text begins in the sequence's text, in characters.
        log_probability: nats.
        top: ids of the likeliest tokens with theirs.
    """

    token: int
    offset: int
    log_probability: float | None = None
    top: Mapping[int, float] | None = None


ROLES = ("developer", "system", "user", "assistant", "tool", "function")
"""Of OpenAI's messages; templates may have more."""


@dataclass(frozen=True)
class Piece:
    """What some steps add to a sequence's text. `finish` is set on the last piece: 'stop' or 'length'."""

    text: str
    tokens: tuple[TokenInfo, ...] = ()
    finish: str | None = None


class Decoding(Protocol):
    """Text of tokens that come one at a time: characters split over several tokens appear once they are whole."""

    def push(self, token: int) -> str:
        """Return the text that this token completes, perhaps none."""

    def finish(self) -> str:
        """Return what is left at the end: U+FFFD for an unfinished character."""


class TextCodec(Protocol):
    """A model's tokenizer.

    Attributes:
        vocab: tokens.
        ends: tokens that end a text.
    """

    vocab: int
    ends: frozenset[int]

    def encode(self, text: str) -> list[int]:
        """Return the ids of a prompt, behind the token that texts of this model begin with. Raises UserError."""

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of a conversation that the assistant goes on with, by the model's template. Raises UserError."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; tokens that are no text are left out."""

    def decode_many(self, many: Sequence[Sequence[int]]) -> list[str]:
        """Return the texts of several sequences, each as `decode` does."""

    def decoding(self, before: Sequence[int] = ()) -> Decoding:
        """Return a decoder for one sequence, which goes on behind the ids `before`."""

    def piece(self, token: int) -> bytes | None:
        """Return the bytes that a token adds to a text, perhaps a part of a character; None: it is left out of texts."""

    def name(self, token: int) -> str:
        """Return a token as text for log-probabilities; bytes that are no character are written out."""


class OwnText:
    """A tokenizer of `windtunnel.data`. BOS begins documents, so prompts begin with it, and a text ends at the next one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.vocab, self.ends = tokenizer.vocab, frozenset({tokenizer.bos})

    def encode(self, text: str) -> list[int]:
        """Return the ids of a prompt, BOS first."""
        return [int(i) for i in self.tokenizer.encode(text, bos=True)]

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """Refuse: these models have no template. Raises UserError."""
        raise UserError("this model was not trained on conversations: it has no chat template", "use /v1/completions")

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids."""
        return self.tokenizer.decode(ids)

    def decode_many(self, many: Sequence[Sequence[int]]) -> list[str]:
        """Return the texts of several sequences."""
        return [self.decode(ids) for ids in many]

    def decoding(self, before: Sequence[int] = ()) -> Decoding:
        """Return a decoder for one sequence."""
        return StreamDecoder(self.tokenizer)

    def piece(self, token: int) -> bytes | None:
        """Return the bytes that a token adds to a text; None of BOS."""
        return None if token == self.tokenizer.bos else self.tokenizer.piece(token)

    def name(self, token: int) -> str:
        """Return a token as text; bytes that are no character are written out."""
        piece = self.piece(token)
        return "<|bos|>" if piece is None else written_out(piece)


def written_out(piece: bytes) -> str:
    """Return a token's bytes as text, in OpenAI's way where they are a part of a character."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


class WholeText(OwnText):
    """Decodes a text when it is whole. Ids that only the model's padded table has are no text.

    Args:
        ends: tokens that end a text.
    """

    def __init__(self, tokenizer: Tokenizer, ends: frozenset[int]) -> None:
        super().__init__(tokenizer)
        self.ends = ends

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; those that only the model's table has are left out."""
        return self.tokenizer.decode(self._known(ids))

    def decode_many(self, many: Sequence[Sequence[int]]) -> list[str]:
        """Return the texts of several sequences; a folder's tokenizer makes them on all cores."""
        return self.tokenizer.decode_many([self._known(ids) for ids in many])

    def _known(self, ids: Iterable[int]) -> list[int]:
        vocab = self.tokenizer.vocab
        return [i for i in ids if i < vocab]

    def decoding(self, before: Sequence[int] = ()) -> _Whole:
        """Return what keeps one sequence's ids until its end."""
        return _Whole(self)


class _Whole:
    def __init__(self, text: WholeText) -> None:
        self._text, self._ids = text, list[int]()

    def push(self, token: int) -> str:
        """Take a token."""
        self._ids.append(token)
        return ""

    def finish(self) -> str:
        """Return all of the text."""
        return self._text.decode(self._ids)


class NoText:
    """Where tokens alone are wanted, and whoever asked makes their text.

    Args:
        vocab: tokens.
        ends: tokens that end a text.
    """

    def __init__(self, vocab: int, ends: Iterable[int]) -> None:
        self.vocab, self.ends = vocab, frozenset(ends)

    def encode(self, text: str) -> list[int]:
        """Refuse text. Raises UserError."""
        raise UserError("this generator takes token ids, not text")

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """Refuse conversations. Raises UserError."""
        raise UserError("this generator takes token ids, not conversations")

    def decode(self, ids: Iterable[int]) -> str:
        """Return no text."""
        return ""

    def decode_many(self, many: Sequence[Sequence[int]]) -> list[str]:
        """Return no texts."""
        return [""] * len(many)

    def decoding(self, before: Sequence[int] = ()) -> NoText:
        """Return what makes none."""
        return self

    def push(self, token: int) -> str:
        """Take a token."""
        return ""

    def finish(self) -> str:
        """Return no text."""
        return ""

    def piece(self, token: int) -> None:
        """Return no bytes."""

    def name(self, token: int) -> str:
        """Return the token's number, written out."""
        return f"token:{token}"


class TextStream:
    """Turns one sequence's tokens into pieces of text.

    Text that may turn out to be the beginning of a stop string is held back until that is decided.

    Args:
        codec: the model's tokenizer.
        stop: strings that end the text.
        include: the text ends after the stop string, else before it.
        before: ids of what the text follows.
    """

    def __init__(self, codec: TextCodec, stop: tuple[str, ...] = (), include: bool = False, before: Sequence[int] = ()) -> None:
        self._codec, self._stop, self._include = codec, stop, include
        # The whole of a stop string is never held: it ends the text.
        self._longest = max((len(s) for s in stop), default=1) - 1
        self._decoding = codec.decoding(before)
        self._held = ""
        self._sent = 0
        self._infos: deque[TokenInfo] = deque()
        self._stopped = False

    def push(self, token: int, log_probability: float | None = None, top: dict[int, float] | None = None) -> tuple[Piece, bool]:
        """Take a token; return the text that it releases, and whether a stop string was completed.

        Args:
            token: its id.
            log_probability: of the token, nats; None: the pieces carry no `TokenInfo`.
            top: the likeliest ids with their log-probabilities.
        """
        if log_probability is not None:
            self._infos.append(TokenInfo(token, self._sent + len(self._held), log_probability, top))
        self._held += self._decoding.push(token)
        # The first in the text ends it, whatever the order in which they were given.
        found = [(at, len(s)) for s in self._stop if (at := self._held.find(s)) >= 0]
        if found:
            at, size = min(found)
            self._held = self._held[: at + size if self._include else at]
            self._stopped = True
            return self._release(len(self._held), final=True), True
        return self._release(len(self._held) - self._undecided(), final=False), False

    def push_all(self, tokens: Iterable[int]) -> str:
        """Take tokens of a text that has no stop strings; return the text that they release."""
        assert not self._stop
        new = "".join(map(self._decoding.push, tokens))
        self._sent += len(new)
        return new

    def finish(self, reason: str) -> Piece:
        """Return the rest, at the end of the sequence; `reason` becomes the piece's `finish`."""
        if self._stopped:
            return Piece("", (), reason)
        self._held += self._decoding.finish()
        rest = self._release(len(self._held), final=False)
        return Piece(rest.text, rest.tokens + tuple(self._infos), reason)

    def _undecided(self) -> int:
        """Count the characters at the end of the held text that begin some stop string."""
        for size in range(min(self._longest, len(self._held)), 0, -1):
            if any(s.startswith(self._held[-size:]) for s in self._stop):
                return size
        return 0

    def _release(self, count: int, final: bool) -> Piece:
        text, self._held = self._held[:count], self._held[count:]
        self._sent += len(text)
        infos = []
        # Tokens go out with their text, which may wait for a stop string to be decided.
        while self._infos and self._infos[0].offset < self._sent:
            infos.append(self._infos.popleft())
        if final:
            self._infos.clear()
        return Piece(text, tuple(infos))
