"""A model's tokenizer with further tokens: each added text is one id wherever it stands in ordinary text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from windtunnel.recipe import UserError

from .subwords import Folder
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    import tokenizers

KEY = "data.tokenizer.add"


def add_tokens(own: Folder, texts: Sequence[str], begin: str = "pieces") -> Folder:
    """Return a tokenizer with further tokens behind the last id of `own`, in the given order.

    They are ordinary tokens, not special ones: a decoder that leaves out special tokens would take them from the answers.
    What is a token already keeps its id and is no new one; it too is never split any more.

    Args:
        own: the model's.
        texts: what becomes a token.
        begin: new rows begin as the mean of those of the 'pieces' that `own` cuts the text into, or as the 'mean' of all.

    Raises:
        UserError: a text is a special token, is spelt like a token that stands for another text, or does not come back as it was.
    """
    import tokenizers

    if not texts:
        return own
    inner = tokenizers.Tokenizer.from_str(own.content)
    there, added = own.ids, inner.get_added_tokens_decoder()
    for text in texts:
        if text in there:
            _require_usable(own, text, there[text], added)
    plain = [text for text in texts if there.get(text) not in added]
    # A normalizer could change the text before it is looked for: lower case, or Unicode's form C.
    inner.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in plain])
    ids = {text: token for text in texts if (token := inner.token_to_id(text)) is not None}
    new = {text: token for text, token in ids.items() if text not in there}
    if new and min(new.values()) < own.vocab:
        raise UserError(
            f"{KEY}: the tokenizer's ids have gaps, and id {min(new.values()):,} would not stand behind all others",
            "mend the ids in tokenizer.json, or leave data.tokenizer.add out",
        )
    # The files beside tokenizer.json, by which tokenizers without that file are made, tell of added tokens too.
    registered = {ids[text]: text for text in plain}
    pieces = {token: own.encode(text).tolist() if begin == "pieces" else [] for text, token in new.items()}
    made = Folder(inner, _told(own.files, registered), pieces)
    for text, token in ids.items():
        _require_whole(made, text, token)
    return made


def describe_added(tokenizer: Tokenizer, texts: Sequence[str], rows: int) -> list[str]:
    """Say what became of the texts that were added; `rows` are those of the model's token tables without them."""
    assert isinstance(tokenizer, Folder)
    ids = {text: tokenizer.ids[text] for text in texts}
    new = tokenizer.new_ids
    lines = [f"{text!r} already is token {token:,}: its row stays as it is" for text, token in ids.items() if token not in new]
    if not new:
        return lines
    first, last = new[0], new[-1]
    span = f"1 token added, id {first:,}" if first == last else f"{len(new):,} tokens added, ids {first:,} to {last:,}"
    if last < rows:
        return [f"{span}, in spare rows of the model's {rows:,}", *lines]
    return [f"{span}: the model's token tables grow from {rows:,} to {last + 1:,} rows", *lines]


def _require_usable(own: Folder, text: str, token: int, added: Mapping[int, tokenizers.AddedToken]) -> None:
    """Refuse a text that is a token already, but not as an answer's text."""
    if token in added and added[token].special:
        raise UserError(
            f"{KEY}: {text!r} is a special token already (id {token:,}), which answers are shown without",
            "leave it out, or choose another text",
        )
    if own.pieces[token] != text.encode():
        shown = own.pieces[token].decode("utf-8", "replace")
        raise UserError(f"{KEY}: the tokenizer spells {shown!r} as {text!r} (id {token:,})", "choose another text")


def _require_whole(made: Folder, text: str, token: int) -> None:
    """Refuse a text that is not one id, or that its id does not give back."""
    # Alone, between letters and between blanks: SentencePiece takes a blank before a token as part of it.
    for before, after in (("", ""), ("a", "b"), (" ", " ")):
        ids = made.encode(f"{before}{text}{after}").tolist()
        if ids.count(token) != 1 or made.decode([token]).strip() != text or text not in made.decode(ids):
            raise UserError(
                f"{KEY}: {text!r} does not come back from this tokenizer: {made.decode(ids)[:60]!r}",
                "choose a text of plain ASCII letters, digits and signs",
            )


def _told(files: dict[str, str], registered: Mapping[int, str]) -> dict[str, str]:
    """Return the files beside tokenizer.json with the tokens in those that list added ones."""
    told = dict(files)
    for name, key in (("tokenizer_config.json", "added_tokens_decoder"), ("added_tokens.json", None)):
        content = json.loads(files.get(name, "{}"))
        listed = content.get(key) if key else content
        if name in files and isinstance(listed, dict):
            flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": False}
            for token, text in registered.items():
                listed |= {str(token): {"content": text, **flags}} if key else {text: token}
            told[name] = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    return told
