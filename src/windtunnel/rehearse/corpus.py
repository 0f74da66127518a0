"""The data: prepared as training will, no document in both splits, every id a token, text that comes back as it was."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from windtunnel.recipe import Recipe, TextCorpus

from .checks import CheckFailed, Evidence, Say
from .excerpt import write_excerpt
from .state import Rehearsal

if TYPE_CHECKING:
    from windtunnel.data import PreparedData

# The user's own text is read whole, as training will read it, where that takes seconds.
WHOLE_BYTES = 200e6
EXCERPT_BYTES = 2_000_000
ROUND_TRIPS = 200


def data(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Prepare the data and look at every token of it."""
    from windtunnel.data import corpus_files, prepare

    corpus = rehearsal.recipe.data.corpus
    before = ""
    if isinstance(corpus, TextCorpus):
        files = corpus_files(corpus)
        size = sum(file.size for file in files)
        if size <= WHOLE_BYTES:
            whole = prepare(rehearsal.recipe, progress=lambda share, what: say(f"{what} ({share:.0%})"))
            rehearsal.corpus = (whole.tokenizer.vocab, whole.train.count)
            before = f"all {size / 1e6:,.1f} MB read: {whole.documents:,} documents, {whole.tokens / 1e6:,.1f} M tokens; "
        if size > EXCERPT_BYTES:
            say("taking an excerpt")
            paths = write_excerpt(files, corpus.separator, rehearsal.folder / "excerpt", EXCERPT_BYTES)
            rehearsal.scale = _with_files(rehearsal.scale, paths)
    prepared = prepare(rehearsal.scale, progress=lambda share, what: say(f"{what} ({share:.0%})"))
    rehearsal.data = prepared
    say("comparing the splits")
    shared = leaked(prepared)
    if shared:
        text = prepared.tokenizer.decode(np.frombuffer(next(iter(shared)), dtype=prepared.train.array.dtype))
        raise CheckFailed(f"{len(shared):,} documents are in both splits, such as {text[:60]!r}", blocks=False)
    _in_range(prepared)
    _round_trips(prepared)
    skipped = sum(prepared.skipped.values())
    text = (
        f"{before}{prepared.documents:,} documents, {prepared.tokens / 1e6:,.2f} M tokens of {prepared.tokenizer.vocab}; "
        f"none in both splits ({prepared.validation_documents:,} held out); {skipped:,} characters skipped"
    )
    numbers = {
        "documents": prepared.documents,
        "tokens": prepared.tokens,
        "vocabulary": prepared.tokenizer.vocab,
        "held_out_documents": prepared.validation_documents,
        "documents_in_both_splits": 0,
        "characters_skipped": skipped,
        "bytes_per_token": prepared.bytes_per_token,
    }
    warning = None
    if skipped:
        most = ", ".join(f"{character!r} {count:,}" for character, count in list(prepared.skipped.items())[:5])
        warning = f"characters outside the alphabet were skipped: {most}"
    return Evidence(text, numbers, warning=warning)


def _with_files(recipe: Recipe, files: list[Path]) -> Recipe:
    corpus = recipe.data.corpus.model_copy(update={"files": [str(path.resolve()) for path in files]})
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"corpus": corpus})})


def leaked(prepared: PreparedData) -> set[bytes]:
    """Token ids of the documents that are in both splits."""
    return _documents(prepared, prepared.validation.array) & _documents(prepared, prepared.train.array)


def _documents(prepared: PreparedData, tokens: np.ndarray[Any, Any]) -> set[bytes]:
    ids = np.asarray(tokens)
    return {part[1:].tobytes() for part in np.split(ids, np.flatnonzero(ids == prepared.tokenizer.bos)) if len(part) > 1}


def _in_range(prepared: PreparedData) -> None:
    for name, tokens in (("train", prepared.train.array), ("validation", prepared.validation.array)):
        largest = int(tokens.max())
        if largest >= prepared.tokenizer.vocab:
            raise CheckFailed(f"the {name} split has token {largest}, the vocabulary ends at {prepared.tokenizer.vocab - 1}")
        if int(tokens[0]) != prepared.tokenizer.bos:
            raise CheckFailed(f"the {name} split does not begin with BOS")


def _round_trips(prepared: PreparedData) -> None:
    tokens = np.asarray(prepared.validation.array[:100_000])
    starts = np.flatnonzero(tokens == prepared.tokenizer.bos)
    for first, last in itertools.pairwise(starts[: ROUND_TRIPS + 1]):
        text = prepared.tokenizer.decode(tokens[first + 1 : last])
        again = prepared.tokenizer.decode(prepared.tokenizer.encode(text))
        if again != text:
            raise CheckFailed(f"{text[:60]!r} comes back from the tokenizer as {again[:60]!r}")
