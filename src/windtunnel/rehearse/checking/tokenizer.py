"""The GPT's tokenizer against its model, its data and its prompts; Hugging Face tokenizers are in `tokenizer_folder`."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from windtunnel.recipe import BPETokenizer, CharacterTokenizer

from . import tokenizer_folder
from .context import Context
from .tokenizer_texts import ODD_TEXTS
from .types import Check, CheckFailed, Evidence, Findings, Say

if TYPE_CHECKING:
    from windtunnel.data import PreparedData, Tokenizer

ROUND_TRIPS = 200
LOOKED_AT = 400_000
MANY_CHARACTERS = 2_000
SKIPPED = 0.01
UNUSED = 0.5
FEW_BYTES = 1.5


def _has_own(context: Context) -> bool:
    return context.has_text and context.is_gpt


def tokenizer(context: Context, say: Say) -> Evidence:
    """Ids against the model's tables; text there and back; prompts."""
    from windtunnel.data import prepare
    from windtunnel.model import recipe_shape

    prepared = prepare(context.recipe) if context.facts["data"].get("whole") else context.prepared
    own, found = prepared.tokenizer, Findings()
    _special(own)
    shape = recipe_shape(context.scale, own.vocab)
    if shape.padded_vocab < own.vocab:
        raise CheckFailed(f"the model's tables have {shape.padded_vocab} rows, the tokenizer {own.vocab} tokens")
    say("text there and back")
    trips = _round_trips(prepared)
    if own.kind == "bpe":
        _odd_texts(own)
    _prompts(context, own, found)
    _vocabulary(context, prepared, found)
    rows = f"{own.vocab:,} tokens in {shape.padded_vocab:,} rows, BOS is {own.bos} and no text's"
    facts = {"vocabulary": own.vocab, "padded": shape.padded_vocab, "round_trips": trips}
    return found.evidence(f"{rows}; {trips} documents came back as they were", facts)


def _special(own: Tokenizer) -> None:
    if own.piece(own.bos) != b"":
        raise CheckFailed(f"token {own.bos}, BOS, stands for text: {own.piece(own.bos)!r}")
    pieces = own.pieces[1:]
    if len(set(pieces)) != len(pieces):
        raise CheckFailed("two tokens stand for the same text")


def _round_trips(prepared: PreparedData) -> int:
    tokens = np.asarray(prepared.validation.array[:LOOKED_AT])
    starts = np.flatnonzero(tokens == prepared.tokenizer.bos)
    number = 0
    for first, last in itertools.pairwise([*starts[:ROUND_TRIPS], len(tokens)]):
        text = prepared.tokenizer.decode(tokens[first + 1 : last])
        again = prepared.tokenizer.decode(prepared.tokenizer.encode(text)) if "\ufffd" not in text else text
        if again != text:
            raise CheckFailed(f"{text[:60]!r} comes back from the tokenizer as {again[:60]!r}")
        number += 1
    return number


def _odd_texts(own: Tokenizer) -> None:
    for text in ODD_TEXTS:
        ids = own.encode(text)
        if len(ids) and (int(ids.max()) >= own.vocab or int(ids.min()) == own.bos):
            raise CheckFailed(f"{text[:40]!r} is encoded with BOS or an id that is none")
        if own.decode(ids) != text:
            raise CheckFailed(f"{text[:40]!r} comes back from the tokenizer as {own.decode(ids)[:40]!r}")


def _prompts(context: Context, own: Tokenizer, found: Findings) -> None:
    from windtunnel.data import UnknownCharacter

    for prompt in context.recipe.evaluation.prompts:
        try:
            own.encode(prompt)
        except UnknownCharacter as error:
            found.problem(
                f"stages.evaluate.prompts: {prompt[:40]!r} has {error.character!r}, which the vocabulary lacks",
                "prompt with characters that the model was trained on, or add it to data.tokenizer.alphabet", shows="end",
            )  # fmt: skip


def _vocabulary(context: Context, prepared: PreparedData, found: Findings) -> None:
    """Its size against the corpus: characters left out, tokens never met, too many or too short ones."""
    own, wanted = prepared.tokenizer, context.recipe.data.tokenizer
    skipped = sum(prepared.skipped.values())
    if skipped:
        most = ", ".join(f"{character!r} {count:,} times" for character, count in list(prepared.skipped.items())[:3])
        what = f"{skipped:,} characters outside the alphabet are left out ({skipped / (skipped + prepared.tokens):.2%}): {most}"
        fix = "add them to data.tokenizer.alphabet, or use alphabet=auto"
        if skipped > SKIPPED * (skipped + prepared.tokens):
            found.problem(what, fix, shows="end")
        else:
            found.warn(f"{what}: {fix}")
    if isinstance(wanted, CharacterTokenizer) and own.vocab > MANY_CHARACTERS:
        found.warn(f"{own.vocab:,} different characters: a token each is wasteful; use data.tokenizer.kind=bpe")
    whole = bool(context.facts["data"].get("whole"))
    if isinstance(wanted, BPETokenizer) and whole:
        if own.vocab < wanted.vocab_size:
            what = f"the corpus gives a vocabulary of {own.vocab:,} tokens, not {wanted.vocab_size:,}"
            found.warn(f"{what}: lower data.tokenizer.vocab_size or give more text")
        if own.vocab > MANY_CHARACTERS and prepared.bytes_per_token < FEW_BYTES:
            found.warn(f"a token stands for {prepared.bytes_per_token:.2f} bytes only: binary or encoded data in the corpus?")
    if whole:
        used = len(np.unique(np.asarray(prepared.train.array[: LOOKED_AT * 50])))
        if used < (1 - UNUSED) * own.vocab:
            found.warn(
                f"{own.vocab - used:,} of {own.vocab:,} tokens never occur in training: the vocabulary is too large for this text"
            )


CHECKS = (
    Check(
        "tokenizer", "its ids are rows of the model, text comes back as it was, prompts can be encoded", "look at data.tokenizer",
        tokenizer, shows="first steps", needs=("recipe", "data"), applies=_has_own,
    ),
    *tokenizer_folder.CHECKS,
)  # fmt: skip
