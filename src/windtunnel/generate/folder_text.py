"""The tokenizer of a Hugging Face folder, as what generates text uses it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from windtunnel.data import TokenBytes, within
from windtunnel.recipe import UserError

from .text import ROLES, Decoding, Message, written_out


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
        self.fast: Any = getattr(self.inner, "_tokenizer", None)
        self._bytes = None if self.fast is None else TokenBytes(self.fast)

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

    def decoding(self, before: Sequence[int] = ()) -> Decoding:
        """Return a decoder for one sequence, which goes on behind the ids `before`."""
        return _FolderDecoding(self, next((token for token in reversed(before) if self._whole(token)), None))

    def _whole(self, token: int) -> bool:
        """Return whether a token is text by itself: a decoder that began inside a character would never get out of it."""
        piece = self.piece(token) or b""
        return bool(piece.strip()) and "\ufffd" not in piece.decode("utf-8", "replace")

    def piece(self, token: int) -> bytes | None:
        """Return the bytes that a token adds to a text, perhaps a part of a character; None: it is left out of texts."""
        if self._bytes is None:  # a tokenizer in Python has no decoder that could be asked
            text = self.decode([token])
            return None if "\ufffd" in text or token in self.inner.all_special_ids else text.encode()
        piece = self._bytes.of(token)
        return b" " + piece if piece and self._bytes.spaced and not self._bytes.continues(token) else piece

    def name(self, token: int) -> str:
        """Return a token as text; a special token as it is written, bytes that are no character written out."""
        piece = self.piece(token)
        return str(self.inner.convert_ids_to_tokens(token)) if piece is None else written_out(piece)


class _FolderDecoding:
    """Decoding by tokenizers' own incremental decoder where the tokenizer has one, else by decoding anew.

    Args:
        text: the tokenizer.
        before: a token that the text follows: many decoders take the space away that a text's first word begins with.
    """

    def __init__(self, text: FolderText, before: int | None = None) -> None:
        self._text, self._fast = text, text.fast
        self._begin([] if before is None else [before])

    def _begin(self, ids: list[int]) -> None:
        from tokenizers.decoders import DecodeStream

        self._ids = ids
        self._sent = self._whole()
        # Anew for each token a text would take time with the square of its length.
        self._stream = DecodeStream(ids=list(ids), skip_special_tokens=True)

    def push(self, token: int) -> str:
        self._ids.append(token)
        # A text may change backwards while a character is unfinished, hence U+FFFD at its end is waited for.
        if self._fast is None:
            whole = self._whole()
            new = "" if whole.endswith("\ufffd") else whole[len(self._sent) :]
        else:
            try:
                new = self._stream.step(self._fast, token) or ""
            except Exception:  # the library raises bare Exception
                # Bytes that made characters, and were sent as such, became none by those behind them; this token is text again.
                new = self._whole()[len(self._sent) :]
                self._begin([token])
                return new
        self._sent += new
        return new

    def finish(self) -> str:
        whole = self._whole()
        return whole[len(self._sent) :] if whole.startswith(self._sent) else ""

    def _whole(self) -> str:
        # By the same decoder as the steps: transformers may tidy up spaces behind it.
        return self._text.decode(self._ids) if self._fast is None else str(self._fast.decode(self._ids))
