"""From tokens to the text a client sees: whole characters only, and nothing of a stop string."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from windtunnel.data import StreamDecoder, Tokenizer


@dataclass(frozen=True)
class TokenInfo:
    """One generated or echoed token. `offset` is where its text begins in the sequence's text, in characters."""

    text: str
    offset: int
    log_probability: float | None = None
    top: dict[str, float] | None = None


@dataclass(frozen=True)
class Piece:
    """What one step adds to a sequence's text. `finish` is set on the last piece: 'stop' or 'length'."""

    text: str
    tokens: tuple[TokenInfo, ...] = ()
    finish: str | None = None


class TextStream:
    """Turns one sequence's tokens into pieces of text.

    Text that may turn out to be the beginning of a stop string is held back until that is decided.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...]) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._decoder = StreamDecoder(tokenizer)
        self._held = ""
        self._sent = 0
        self._infos: deque[TokenInfo] = deque()
        self._stopped = False

    def push(self, token: int, log_probability: float | None = None, top: dict[int, float] | None = None) -> tuple[Piece, bool]:
        """The text a token releases, and whether a stop string was completed."""
        if log_probability is not None:
            named = None if top is None else {self.name(t): p for t, p in top.items()}
            self._infos.append(TokenInfo(self.name(token), self._sent + len(self._held), log_probability, named))
        self._held += self._decoder.push(token)
        found = [at for s in self._stop if (at := self._held.find(s)) >= 0]
        if found:
            self._held = self._held[: min(found)]
            self._stopped = True
            return self._release(len(self._held), final=True), True
        return self._release(len(self._held) - self._undecided(), final=False), False

    def finish(self, reason: str) -> Piece:
        """The rest, at the end of the sequence."""
        if self._stopped:
            return Piece("", (), reason)
        self._held += self._decoder.finish()
        rest = self._release(len(self._held), final=False)
        return Piece(rest.text, rest.tokens + tuple(self._infos), reason)

    def name(self, token: int) -> str:
        """A token as text for log-probabilities; bytes that are no character are written out."""
        piece = self._tokenizer.piece(token)
        if token == self._tokenizer.bos:
            return "<|bos|>"
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)

    def _undecided(self) -> int:
        """Characters at the end of the held text that begin some stop string."""
        longest = max((len(s) for s in self._stop), default=1) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            if any(s.startswith(self._held[-size:]) for s in self._stop):
                return size
        return 0

    def _release(self, count: int, final: bool) -> Piece:
        text, self._held = self._held[:count], self._held[count:]
        self._sent += len(text)
        infos = []
        while self._infos and self._infos[0].offset < self._sent:
            infos.append(self._infos.popleft())
        if final:
            self._infos.clear()
        return Piece(text, tuple(infos))
