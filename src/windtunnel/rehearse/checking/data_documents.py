"""Judgements on what the documents are like; the numbers are those of `data_profile`."""

from __future__ import annotations

from typing import Any

from windtunnel.recipe import ArithmeticCorpus, TextCorpus

from .context import Context
from .types import Check, Evidence, Findings, Say

REPLACED, DAMAGED = 1e-5, 1e-3
"""Share of bytes from which signs of a wrong encoding are told, and refused."""
CONTROL = 1e-4
TAGS = 0.005
"""HTML tags a byte; Python's own sources have a thirtieth of that."""
ONE_LINE, ONE_CHARACTER = 0.2, 0.6
REPEATED, MOSTLY_REPEATED = 0.05, 0.5
GENERATED_REPEATED, GENERATED_MOSTLY = 0.6, 0.95
"""Sums of few digits repeat by their nature."""
TINY_BYTES = 4
ENORMOUS = 0.25
MANY = 100
CUT_BYTES, SAME_LENGTH = 64, 0.5


def _has_profile(context: Context) -> bool:
    return context.has_text


def _own_text(context: Context) -> bool:
    return isinstance(context.recipe.data.corpus, TextCorpus)


def _profile(context: Context) -> dict[str, Any]:
    profile: dict[str, Any] = context.facts["data"]["profile"]
    return profile


def text(context: Context, say: Say) -> Evidence:
    """Signs of text that was decoded wrongly, or is not what it should be."""
    seen, found = _profile(context), Findings()
    whole = max(1, seen["looked_at"])
    _judge_encoding(seen, whole, found)
    if seen["control"] > CONTROL * whole:
        found.warn(
            f"{seen['control']:,} control characters ({seen['control'] / whole:.2%}), as from a terminal's log: remove them"
        )
    if seen["lines"] > MANY and seen["carriage_returns"] > 0.5 * seen["lines"]:
        found.warn("lines end with CR LF as on Windows: each costs a token more; dos2unix removes them")
    if seen["tags"] > TAGS * whole:
        found.warn(f"{seen['tags']:,} HTML tags, one every {whole // seen['tags']:,} bytes: extract the text from the pages")
    if seen["line_share"] > ONE_LINE:
        found.warn(f"{seen['line_share']:.0%} of the text is one line again and again: {seen['common_line']!r}; remove it")
    if seen["character_share"] > ONE_CHARACTER:
        found.warn(f"{seen['character_share']:.0%} of the text is the character {seen['common_character']!r}: padding? remove it")
    facts = {key: seen[key] for key in ("looked_at", "replacements", "mojibake", "control", "tags", "carriage_returns")}
    damage = f"{seen['replacements']:,} lost and {seen['mojibake']:,} twice decoded characters"
    other = f"{seen['control']:,} control characters, {seen['tags']:,} HTML tags"
    return found.evidence(f"{whole / 1e6:,.1f} MB looked at: {damage}, {other}", facts)


def _judge_encoding(seen: dict[str, Any], whole: int, found: Findings) -> None:
    for key, what in (
        ("replacements", "U+FFFD signs of bytes that were lost"),
        ("mojibake", "signs such as 'Ã©' of text decoded twice"),
    ):
        count, share = seen[key], seen[key] / whole
        if share > DAMAGED:
            found.problem(
                f"{count:,} {what}, one every {whole // count:,} bytes", "decode the source with its true encoding", shows="end"
            )
        elif share > REPLACED:
            found.warn(f"{count:,} {what}, one every {whole // count:,} bytes: decode the source with its true encoding")


def lengths(context: Context, say: Say) -> Evidence:
    """Documents neither empty, nor enormous, nor cut to one length."""
    seen, found, corpus = _profile(context), Findings(), context.recipe.data.corpus
    count = seen["documents"]
    if isinstance(corpus, TextCorpus) and corpus.separator is not None:
        _judge_separator(context, corpus.separator, seen, found)
    if seen["blank"] > 0.01 * count and seen["blank"] > 1:
        found.warn(f"{seen['blank']:,} of {count:,} documents are white space only: leave them out")
    share = seen["longest"] / seen["bytes"]
    if count >= MANY and share > ENORMOUS:
        found.warn(f"one document of {seen['longest'] / 1e6:,.1f} MB is {share:.0%} of the text: a file that was not split?")
    if count >= MANY and seen["common_length"] >= CUT_BYTES and seen["same_length"] > SAME_LENGTH:
        found.warn(
            f"{seen['same_length']:.0%} of the documents have exactly {seen['common_length']:,} bytes: were they cut at export?"
        )
    middle = f"{seen['shortest']:,} to {seen['longest']:,} bytes, {seen['median']:,} in the middle"
    facts = {key: seen[key] for key in ("documents", "shortest", "median", "longest", "blank", "same_length")}
    return found.evidence(f"{count:,} documents of {middle}", facts)


def _judge_separator(context: Context, separator: str, seen: dict[str, Any], found: Findings) -> None:
    files = context.facts.get("data-files", {}).get("files", 1)
    fix = "give the separator that stands between documents"
    if seen["documents"] <= files:
        what = f"occurs in none of the files: each of the {files:,} is one document"
        found.problem(f"data.corpus.separator {separator!r} {what}", fix)
    elif seen["median"] <= TINY_BYTES and seen["bytes"] > 100 * TINY_BYTES:
        what = f"cuts too often: half of the documents have {seen['median']} bytes or fewer"
        found.problem(f"data.corpus.separator {separator!r} {what}", fix)


def duplicates(context: Context, say: Say) -> Evidence:
    """How many documents stand there before."""
    seen, found = _profile(context), Findings()
    generated = isinstance(context.recipe.data.corpus, ArithmeticCorpus)
    some, most = (GENERATED_REPEATED, GENERATED_MOSTLY) if generated else (REPEATED, MOSTLY_REPEATED)
    share = seen["repeated"]
    example = f", such as {seen['most_repeated']!r} {seen['copies']:,} times" if seen["most_repeated"] else ""
    what = f"{share:.1%} of {seen['documents']:,} documents are copies of others{example}"
    fix = "raise data.corpus.digits or terms, or lower documents" if generated else "remove repetitions from the corpus"
    if share > most:
        found.problem(what, fix, shows="end")
    elif share > some:
        found.warn(f"{what}: {fix}")
    return found.evidence(
        f"{share:.1%} of {seen['documents']:,} documents are copies of others", {"repeated": share, "copies": seen["copies"]}
    )


CHECKS = (
    Check(
        "data-text", "the text is whole: no signs of a wrong encoding, markup or padding", "look at the files of data.corpus",
        text, shows="end", needs=("recipe", "data"), applies=_own_text, apart=False,
    ),
    Check(
        "data-lengths", "documents are neither empty, nor enormous, nor all cut to one length", "look at data.corpus.separator",
        lengths, shows="end", needs=("recipe", "data"), applies=_has_profile, apart=False,
    ),
    Check(
        "data-duplicates", "documents are not copies of one another", "remove repetitions", duplicates,
        shows="end", needs=("recipe", "data"), applies=_has_profile, apart=False,
    ),
)  # fmt: skip
