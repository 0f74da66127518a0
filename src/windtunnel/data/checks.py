"""Check that the corpus is there, is text, can be read and tokenized as training will, and is large enough."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from windtunnel.check import Check, CheckFailed, Context, Evidence, Findings, Say
from windtunnel.recipe import ArithmeticCorpus, Recipe, StdlibCorpus, TextCorpus, UserCorpus, UserError

from .checks_text import SAMPLE_BYTES, profile
from .corpus import CorpusFile, corpus_files
from .formats import form_of, open_bytes, records
from .not_text import what_else
from .prepared import PreparedData, prepare
from .survey import sample_documents
from .write import NOISY_TOKENS, Progress

# Files, by their first bytes.

HEAD_BYTES = 4096
MOST_FILES = 20_000  # opening each takes a tenth of a millisecond, on a network ten times that
SHOWN = 3
# What a failed download leaves in the file: a page, or a store's error.
_PAGE = (b"<!doctype html", b"<html")
_ERRORS = (b"access denied", b"<error><code>", b"404 not found", b"not found", b"403 forbidden", b"rate limit")
ERROR_BYTES = 2048  # longer texts that begin like that are texts


def has_text(context: Context) -> bool:
    """Return whether the corpus is the user's own text."""
    return isinstance(context.recipe.data.corpus, TextCorpus)


def has_tokens(context: Context) -> bool:
    """Return whether a GPT is trained on text, by a tokenizer of its own."""
    return context.has_text and context.is_gpt


def as_progress(say: Say) -> Progress:
    """Return what tells a check's listener how far preparing has come."""
    return lambda share, what: say(f"{what} ({share:.0%})")


def whole_or_scaled(context: Context) -> PreparedData:
    """Return all of the user's text where the check of the data read it whole, else the scale model's."""
    return prepare(context.recipe) if context.facts["data"].get("whole") else context.prepared


def head(file: CorpusFile) -> bytes:
    """Return the beginning of a file, decompressed; of one that is damaged nothing, as whoever reads it is told so."""
    try:
        with open_bytes(file.path) as source:
            return source.read(HEAD_BYTES)
    except UserError:
        return b""


def is_json_lines(path: str, beginning: bytes) -> bool:
    """Return whether a file holds a JSON object a line, by its name or its first line."""
    if Path(path).suffix in (".jsonl", ".ndjson"):
        return True
    line = beginning.lstrip(b"\xef\xbb\xbf \t\r\n").split(b"\n", 1)[0]
    if not line.startswith(b'{"'):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return b'":' in line and len(line) > HEAD_BYTES // 2  # a first line that is longer than what was read


def files(context: Context, say: Say) -> Evidence:
    """Look at the first bytes of each file."""
    corpus = context.recipe.data.corpus
    assert isinstance(corpus, TextCorpus)
    found, listed = Findings(), corpus_files(corpus)
    problems: dict[tuple[str, str], list[str]] = {}
    json_lines = []
    for file in listed[:MOST_FILES]:
        beginning = head(file)
        wrong = _what_else(beginning, file.size)
        if wrong:
            problems.setdefault(wrong, []).append(file.path)
            continue
        form = form_of(file.path, file.format)
        if form != "text":
            next(records(file.path, form, [file.text_key]), None)  # says what is wrong with a table or the first line
        if is_json_lines(file.path, beginning):
            json_lines.append(file.path)
    for (what, fix), paths in problems.items():
        found.problem(f"{_some(paths)}: {what}, not text", fix)
    same = _same_contents(listed)
    if same:
        found.warn(f"{same[0]} and {same[1]} have the same contents: list one of them")
    size = sum(file.size for file in listed)
    text = f"{len(listed):,} file{'s' if len(listed) != 1 else ''}, {size / 1e6:,.1f} MB: text by their first bytes"
    return found.evidence(text, {"files": len(listed), "bytes": size, "json_lines": len(json_lines)})


def _what_else(beginning: bytes, size: int) -> tuple[str, str] | None:
    """Return (what a file is instead of text, what to do), or None."""
    found = what_else(beginning)
    if found is not None:
        return f"this is {found[0]}", found[1]
    start = beginning.lstrip()[:200].lower()
    # A corpus of real pages is larger than an error's page.
    if start.startswith(_PAGE) and size < 100 * ERROR_BYTES:
        return "this is an HTML page, perhaps a download's error message", "download the file again and look at it"
    if size < ERROR_BYTES and start.startswith(_ERRORS):
        return "this is the error message of a download", "download the file again"
    return None


def _same_contents(listed: list[CorpusFile]) -> tuple[str, str] | None:
    """Return two files with the same contents, among those of the same size."""
    import xxhash

    by_size: dict[int, list[str]] = {}
    for file in listed:
        by_size.setdefault(file.size, []).append(file.path)
    seen: dict[tuple[int, str], str] = {}
    for size, paths in by_size.items():
        # Tiny files (licences, empty notebooks) are often the same, and cost nothing.
        for path in paths if len(paths) > 1 and size >= HEAD_BYTES // 16 else ():
            with open(path, "rb") as source:
                key = size, xxhash.xxh3_128_hexdigest(source.read(1 << 24))  # 16 MiB tell two files of one size apart
            if key in seen:
                return seen[key], path
            seen[key] = path
    return None


def _some(paths: list[str]) -> str:
    more = f" and {len(paths) - SHOWN:,} more" if len(paths) > SHOWN else ""
    return ", ".join(paths[:SHOWN]) + more


# The data as training will see it.

WHOLE_BYTES = 200_000_000  # the user's own text up to this size is tokenized whole, as training will do; of more, an excerpt


def data(context: Context, say: Say) -> Evidence:
    """Read the documents; for a GPT tokenize them and look at every token."""
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
    """Return the recipe with a record of JSON lines as a document, where it names no other separator."""
    from .checks_conversations import has_records

    recipe, corpus = context.recipe, context.recipe.data.corpus
    if not isinstance(corpus, TextCorpus) or corpus.separator is not None or not has_records(context):
        return recipe
    lines = corpus.model_copy(update={"separator": "\n", "format": "text"})
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"corpus": lines})})


def _whole(context: Context, say: Say) -> PreparedData | None:
    """Return all of the user's own text prepared, or None where that takes too long or it is generated."""
    corpus = context.recipe.data.corpus
    if not isinstance(corpus, TextCorpus | UserCorpus) or sum(file.size for file in corpus_files(corpus)) > WHOLE_BYTES:
        return None
    return prepare(context.recipe, progress=as_progress(say))


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


# Enough tokens for a step and an epoch, and for a validation loss that is not noise.

USELESS_TOKENS = 1_000  # the standard error of a mean over n tokens is about 1 / sqrt(n) nats: 0.03 here, 0.007 of NOISY_TOKENS
LOPSIDED = 5.0  # times by which the held-out share may miss what was asked: a few long documents fall whole on one side


def amount(context: Context, say: Say) -> Evidence:
    """Compare the tokens of both splits with what a sequence, a step and the run take."""
    found = Findings()
    train, held_out, how = _tokens(context)
    sequence, share = context.recipe.gpt.sequence, context.recipe.data.validation
    if train < sequence:
        found.problem(
            f"the training split has {train:,} tokens, one sequence takes {sequence:,}",
            "give more text or shorten model.sequence",
        )
    if held_out < max(USELESS_TOKENS, min(sequence, NOISY_TOKENS)):
        what = f"the validation split has {held_out:,} tokens: its loss would be chance"
        found.problem(what, "raise data.validation or give more text", shows="first validation")
    elif held_out < NOISY_TOKENS:
        found.warn(
            f"the validation split has {held_out:,} tokens, its loss will vary by {held_out**-0.5:.1%}: raise data.validation"
        )
    if context.facts["data"].get("whole") and max(held_out / train / share, share * train / max(held_out, 1)) > LOPSIDED:
        found.warn(f"{held_out / (train + held_out):.2%} of the text is held out, not {share:.2%}: split the few long documents")
    text = f"{train / 1e6:,.2f} M tokens to train on, {held_out:,} held out ({how})"
    facts: dict[str, Any] = {"train_tokens": train, "validation_tokens": held_out, "epochs": None}
    try:
        plan = context.plan()
    except UserError:
        return found.evidence(text, facts)  # the check of the plan says why there is none
    step = plan.layout.batch_tokens
    if step > train:
        found.problem(
            f"one step takes {step:,} tokens, the whole training split has {train:,}: every step would repeat it",
            "give more text or lower stages.pretrain.batch_tokens", shows="first steps",
        )  # fmt: skip
    else:
        text += f"; an epoch is {train / step:,.0f} steps of {step:,} tokens"
    facts["epochs"] = plan.epochs
    return found.evidence(text, facts)


def _tokens(context: Context) -> tuple[int, int, str]:
    """Return (training tokens, held-out tokens, how they are known)."""
    facts, recipe = context.facts["data"], context.recipe
    if whole := facts.get("whole"):
        return whole["train_tokens"], whole["validation_tokens"], "counted"
    seen, per_token = facts["profile"], facts["scale"]["bytes_per_token"]
    corpus = recipe.data.corpus
    if isinstance(corpus, ArithmeticCorpus):
        total = corpus.documents * (seen["bytes"] / seen["documents"] + 1)
    elif isinstance(corpus, StdlibCorpus):
        total = min(corpus.megabytes * 1e6, seen["bytes"]) / per_token
    else:
        assert isinstance(corpus, TextCorpus | UserCorpus)
        total = sum(file.size for file in corpus_files(corpus)) / per_token
    return round(total * (1 - recipe.data.validation)), round(total * recipe.data.validation), "estimated from a sample"


CHECKS = (
    Check(
        "data-files", "the corpus's files are there and are text", "look at data.corpus.files", files,
        shows="start", needs=("recipe",), applies=has_text,
    ),
    Check(
        "data", "the corpus is read and tokenized as training will; every token is in range",
        "look at data.corpus and data.tokenizer", data,
        shows="start", needs=("recipe", "data-files"), limit=180.0,
    ),
    Check(
        "data-amount", "there are tokens enough for a step, and held-out ones for a validation loss", "give more text", amount,
        shows="first validation", needs=("recipe", "rig", "data"), applies=has_tokens, apart=False,
    ),
)  # fmt: skip
