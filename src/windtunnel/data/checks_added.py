"""Check the tokens that a recipe adds to a model's own: their rows, their text there and back, and that the data teaches them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from windtunnel.check import Check, Context, Evidence, Findings, Say

from .documents import Array

if TYPE_CHECKING:
    from windtunnel.data import PreparedData

MOST_SAMPLES = 5_000  # conversations, enough to meet every token that is not rare


def _adds(context: Context) -> bool:
    return bool(getattr(context.recipe.data.tokenizer, "add", []))


def added_tokens(context: Context, say: Say) -> Evidence:
    """Encode and decode each added text, and count it in the training data."""
    from .added import describe_added
    from .subwords import Folder

    found, prepared, texts = Findings(), context.prepared, context.recipe.data.tokenizer.add  # type: ignore[union-attr]
    tokenizer = prepared.tokenizer
    assert isinstance(tokenizer, Folder)
    ids = {text: tokenizer.ids[text] for text in texts}
    # Next to blanks and signs, as they stand in text.
    sentence = " ".join(f"{text}, {text}." for text in texts)
    if (again := tokenizer.decode(tokenizer.encode(sentence))) != sentence:
        found.warn(f"text with added tokens comes back with other blanks: {again[:60]!r} for {sentence[:60]!r}")
    say("counting them in the training data")
    there, learned = _counts(prepared)
    absent = [text for text, token in ids.items() if not there[token]]
    asked = [text for text, token in ids.items() if there[token] and not learned[token]]
    if absent:
        found.warn(f"never in the training data looked at: {', '.join(absent)}; nothing teaches such a token, leave it out")
    if asked:
        found.warn(f"only in what is asked, never in what is learned: {', '.join(asked)}")
    rows = context.rows(tokenizer.vocab)
    text = "; ".join(describe_added(tokenizer, texts, rows))
    facts = {"new": list(tokenizer.new_ids), "counts": {text: int(there[token]) for text, token in ids.items()}, "rows": rows}
    return found.evidence(f"{text}; each text is one id and comes back", facts)


def _counts(prepared: PreparedData) -> tuple[Array, Array]:
    """Return how often each id stands in the training data, and how often it is learned, (vocab,) each."""
    from .samples import conversation_files

    vocab = prepared.tokenizer.vocab
    there, learned = np.zeros(vocab, dtype=np.int64), np.zeros(vocab, dtype=np.int64)
    files = conversation_files(prepared)
    if not files:
        there += np.bincount(np.asarray(prepared.train.array[: MOST_SAMPLES * 1000]).astype(np.int64), minlength=vocab)[:vocab]
        return there, there
    for file in files:
        for number in range(min(file.samples, MOST_SAMPLES)):
            ids, flags = file.sample(number)
            there += np.bincount(ids, minlength=vocab)
            learned += np.bincount(ids[flags], minlength=vocab)
    return there, learned


CHECKS = (
    Check(
        "added-tokens", "each added text is one token that comes back, has a row, and is learned from the data",
        "look at data.tokenizer.add", added_tokens, shows="end", needs=("recipe", "data"), applies=_adds,
    ),
)  # fmt: skip
