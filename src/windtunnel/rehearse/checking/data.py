"""The data as training will see it: read whole where that takes seconds, tokenized, and looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windtunnel.recipe import Recipe, TextCorpus, UserError

from . import data_amount, data_answers, data_documents, data_files, data_records, data_splits, puzzles
from .context import Context
from .data_profile import SAMPLE_BYTES, profile
from .types import Check, CheckFailed, Evidence, Say

if TYPE_CHECKING:
    from windtunnel.data import PreparedData

WHOLE_BYTES = 200_000_000
"""The user's own text up to this size is tokenized whole, as training will do; of more, an excerpt."""


def data(context: Context, say: Say) -> Evidence:
    """Read the documents; for a GPT tokenize them and look at every token."""
    from windtunnel.data import sample_documents

    if not context.has_data:
        if context.is_gpt:
            raise CheckFailed("data.corpus.kind is counted: there is no text to train on", "give text files")
        return Evidence("data that is only counted: there is no text to look at", absent="give text files in data.corpus")
    if context.has_puzzles:
        return _puzzles(context)
    say("reading documents")
    seen = profile(sample_documents(_by_line(context), SAMPLE_BYTES))
    facts: dict[str, Any] = {"profile": seen.to_json()}
    text = f"{seen.documents:,} documents of {seen.bytes / 1e6:,.1f} MB read"
    if not context.is_gpt:
        return Evidence(text, facts)
    whole = _whole(context, say)
    if whole is not None:
        facts["whole"] = _size(whole)
        _in_range(whole)
        text += f", in all {whole.tokens / 1e6:,.2f} M tokens"
    prepared = context.prepared
    _in_range(prepared)
    facts["scale"] = _size(prepared) | {"notes": prepared.notes, "skipped": dict(list((whole or prepared).skipped.items())[:5])}
    text += f"; the scale model gets {prepared.tokens / 1e6:,.2f} M tokens of {prepared.tokenizer.vocab:,}, all in range"
    return Evidence(text, facts)


def _puzzles(context: Context) -> Evidence:
    prepared = context.prepared
    _in_range(prepared)
    text = (
        f"puzzles of the scale model: {prepared.train_documents:,} to train on, {prepared.validation_documents:,} held out, "
        f"{prepared.tokenizer.vocab} tokens, all in range"
    )
    return Evidence(text, {"scale": _size(prepared) | {"notes": prepared.notes, "skipped": {}}})


def _by_line(context: Context) -> Recipe:
    """The recipe with a record of JSON lines as a document, where it names no other separator."""
    recipe, corpus = context.recipe, context.recipe.data.corpus
    if not isinstance(corpus, TextCorpus) or corpus.separator is not None or not data_records.has_records(context):
        return recipe
    lines = corpus.model_copy(update={"separator": "\n", "format": "text"})
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"corpus": lines})})


def _whole(context: Context, say: Say) -> PreparedData | None:
    """All of the user's own text prepared, or None where that takes too long or it is generated."""
    from windtunnel.data import corpus_files, prepare

    corpus = context.recipe.data.corpus
    if not isinstance(corpus, TextCorpus) or sum(file.size for file in corpus_files(corpus)) > WHOLE_BYTES:
        return None
    return prepare(context.recipe, progress=lambda share, what: say(f"{what} ({share:.0%})"))


def _size(prepared: PreparedData) -> dict[str, Any]:
    return {
        "vocabulary": prepared.tokenizer.vocab,
        "train_tokens": prepared.train.count,
        "validation_tokens": prepared.validation.count,
        "documents": prepared.documents,
        "held_out_documents": prepared.validation_documents,
        "bytes_per_token": prepared.bytes_per_token,
        "skipped_characters": sum(prepared.skipped.values()),
    }


def _in_range(prepared: PreparedData) -> None:
    for name, tokens in (("train", prepared.train.array), ("validation", prepared.validation.array)):
        if not len(tokens):
            raise UserError(f"the {name} split is empty", "give more text, or raise data.validation")
        largest = int(tokens.max())
        if largest >= prepared.tokenizer.vocab:
            raise CheckFailed(f"the {name} split has token {largest}, the vocabulary ends at {prepared.tokenizer.vocab - 1}")
        if prepared.corpus != "sudoku" and int(tokens[0]) != prepared.tokenizer.bos:
            raise CheckFailed(f"the {name} split does not begin with BOS")


CHECKS = (
    *data_files.CHECKS,
    *data_records.CHECKS,
    Check(
        "data", "the corpus is read and tokenized as training will; every token is in range",
        "look at data.corpus and data.tokenizer", data,
        shows="start", needs=("recipe", "data-files"), limit=180.0,
    ),
    *data_documents.CHECKS,
    *data_splits.CHECKS,
    *data_answers.CHECKS,
    *puzzles.CHECKS,
    *data_amount.CHECKS,
)  # fmt: skip
