"""From text to tokens and back: our tokenizers and Hugging Face's behind one interface, and text as a client sees it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from windtunnel.data import StreamDecoder, Tokenizer, within
from windtunnel.recipe import UserError

Message = dict[str, Any]


@dataclass(frozen=True)
class TokenInfo:
    """One generated or echoed token.

    Attributes:
        text: the token, written out where it is no whole character.
        offset: where its text begins in the sequence's text, in characters.
        log_probability: nats.
        top: the likeliest tokens with theirs.
    """

    text: str
    offset: int
    log_probability: float | None = None
    top: dict[str, float] | None = None


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

    def decoding(self) -> Decoding:
        """Return a decoder for one sequence."""

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

    def decoding(self) -> Decoding:
        """Return a decoder for one sequence."""
        return StreamDecoder(self.tokenizer)

    def name(self, token: int) -> str:
        """Return a token as text; bytes that are no character are written out."""
        if token == self.tokenizer.bos:
            return "<|bos|>"
        # Log-probabilities name tokens that may be half a character.
        piece = self.tokenizer.piece(token)
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

    def decoding(self) -> _Whole:
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

    def decoding(self) -> NoText:
        """Return what makes none."""
        return self

    def push(self, token: int) -> str:
        """Take a token."""
        return ""

    def finish(self) -> str:
        """Return no text."""
        return ""

    def name(self, token: int) -> str:
        """Return the token's number, written out."""
        return f"token:{token}"


class FolderText:
    """The tokenizer of a Hugging Face folder.

    Args:
        folder: holds tokenizer.json and its configuration, and the chat template if there is one.
        ends: tokens that end a text beside the tokenizer's own, as the model's files name them.
    """

    def __init__(self, folder: Path, ends: Iterable[int] | None = None) -> None:
        from transformers import AutoTokenizer

        try:
            self.inner: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # the library raises many kinds
            words = f"{folder}: the tokenizer cannot be read: {str(error).splitlines()[0]}"
            raise UserError(words, "the folder needs the tokenizer.json that came with the model") from None
        own = [] if self.inner.eos_token_id is None else [self.inner.eos_token_id]
        self.ends = frozenset([*own, *(ends or ())])
        self.vocab = len(self.inner)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a prompt; of an empty one the token that texts begin with, or one that ends them.

        Raises:
            UserError: the prompt has no tokens.
        """
        # Half a surrogate pair has no UTF-8; it becomes '?', as Python writes it.
        ids: list[int] = self.inner.encode(text.encode("utf-8", "replace").decode())
        if ids:
            return ids
        # A model has to begin with something; what ends one text begins the next.
        start = self.inner.bos_token_id if self.inner.bos_token_id is not None else min(self.ends, default=None)
        if start is None:
            raise UserError("the prompt has no tokens", "write at least one character")
        return [start]

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of a conversation by the folder's template.

        Raises:
            UserError: there is no template, it refuses these messages, or neither it nor anyone has heard of a role.
        """
        # A template that was made up would ask a model in a form that it never saw.
        if not self.inner.chat_template:
            raise UserError("this model's folder has no chat template", "use /v1/completions")
        for message in messages:
            self._require_role(message["role"])
        try:
            ids: list[int] = within(
                lambda: self.inner.apply_chat_template(
                    list(messages), tokenize=True, add_generation_prompt=True, return_dict=False
                )
            )
        except Exception as error:  # a template is a program of the model's: it may refuse, or fail
            raise UserError(f"the model's chat template refuses these messages: {error}") from None
        return ids

    def _require_role(self, role: str) -> None:
        """Refuse a role that most templates would write down as it is, whatever it says. Raises UserError."""
        # Templates are programs: a role that they name in quotes is taken for one that they know.
        named = any(f"{quote}{role}{quote}" in str(self.inner.chat_template) for quote in "'\"")
        if role not in ROLES and not named:
            raise UserError(f"the role {role!r} is not one of {', '.join(ROLES)}, and the model's chat template does not name it")

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, special tokens left out."""
        text: str = self.inner.decode(list(ids), skip_special_tokens=True)
        return text

    def decode_many(self, many: Sequence[Sequence[int]]) -> list[str]:
        """Return the texts of several sequences, special tokens left out."""
        return [self.decode(ids) for ids in many]

    def decoding(self) -> Decoding:
        """Return a decoder for one sequence."""
        return _FolderDecoding(self)

    def name(self, token: int) -> str:
        """Return a token as text; what is no whole character by the tokenizer's own name for it."""
        text: str = self.inner.decode([token])
        if "\ufffd" not in text:
            return text
        return f"token:{self.inner.convert_ids_to_tokens(token)}"


class _FolderDecoding:
    """Decoding by tokenizers' own incremental decoder where the tokenizer has one, else by decoding anew."""

    def __init__(self, text: FolderText) -> None:
        from tokenizers.decoders import DecodeStream

        self._text, self._ids, self._sent = text, [], ""  # type: tuple[FolderText, list[int], str]
        self._fast = getattr(text.inner, "_tokenizer", None)
        # Anew for each token a text would take time with the square of its length.
        self._stream = DecodeStream(skip_special_tokens=True)

    def push(self, token: int) -> str:
        self._ids.append(token)
        # A text may change backwards while a character is unfinished, hence U+FFFD at its end is waited for.
        if self._fast is not None:
            new = self._stream.step(self._fast, token) or ""
        else:
            whole = self._text.decode(self._ids)
            new = "" if whole.endswith("\ufffd") else whole[len(self._sent) :]
        self._sent += new
        return new

    def finish(self) -> str:
        whole = self._text.decode(self._ids)
        return whole[len(self._sent) :] if whole.startswith(self._sent) else ""


class TextStream:
    """Turns one sequence's tokens into pieces of text.

    Text that may turn out to be the beginning of a stop string is held back until that is decided.

    Args:
        codec: the model's tokenizer.
        stop: strings that end the text.
        include: the text ends after the stop string, else before it.
    """

    def __init__(self, codec: TextCodec, stop: tuple[str, ...] = (), include: bool = False) -> None:
        self._codec, self._stop, self._include = codec, stop, include
        # The whole of a stop string is never held: it ends the text.
        self._longest = max((len(s) for s in stop), default=1) - 1
        self._decoding = codec.decoding()
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
            named = None if top is None else {self._codec.name(t): p for t, p in top.items()}
            self._infos.append(TokenInfo(self._codec.name(token), self._sent + len(self._held), log_probability, named))
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
