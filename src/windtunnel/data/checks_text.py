"""Check what the documents are like: lengths, repetitions, signs of damaged text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from windtunnel.check import Check, Context, Evidence, Findings, Say
from windtunnel.recipe import ArithmeticCorpus, TextCorpus, UserCorpus

if TYPE_CHECKING:
    from .documents import DocumentBatch


# The profile: counts of one pass over a sample.

SAMPLE_BYTES = 200_000_000
LOOKED_AT_BYTES = 32_000_000  # of so much text the characters are looked at; lengths and repetitions are of the whole sample
SHOWN = 60
COMMON_LINES = 20_000  # of each batch: rarer lines are no padding, and all of them would fill the memory
REMEMBERED = 50  # of each batch, to show one; hashes alone are counted
# UTF-8 that was read as Latin-1 or Windows-1252 and written as UTF-8 again: 'Ã©', 'â€™', 'Â '.
_MOJIBAKE = re.compile(rb"\xc3\x83\xc2[\x80-\xbf]|\xc3\xa2\xe2\x82\xac|\xc3\x82\xc2[\xa0-\xbf]")
_CONTROL = re.compile(rb"[\x01-\x08\x0b\x0e-\x1f\x7f]")
_TAG = re.compile(rb"</?[a-zA-Z][a-zA-Z0-9]{0,9}[ >/]")
_REPLACEMENT = "\ufffd".encode()
_SIGNS = ("looked_at", "replacements", "mojibake", "control", "tags", "lines", "carriage_returns")


@dataclass(frozen=True)
class Profile:
    """Counts over a sample of documents; bytes are of UTF-8.

    Attributes:
        blank: documents of white space only. same_length: share of documents of the most common length,
            `common_length`. repeated: share of documents that stand there before. copies: of the most
            repeated document, `most_repeated`. looked_at: bytes whose characters were counted.
        line_share: share of the text that is the most common line, `common_line`.
        character_share: share of the text that is the most common byte, `common_character`.
    """

    documents: int
    bytes: int
    shortest: int
    median: int
    longest: int
    blank: int
    same_length: float
    common_length: int
    repeated: float
    copies: int
    most_repeated: str
    looked_at: int
    replacements: int
    mojibake: int
    control: int
    tags: int
    lines: int
    carriage_returns: int
    line_share: float
    common_line: str
    character_share: float
    common_character: str

    def to_json(self) -> dict[str, Any]:
        """Return all fields."""
        return asdict(self)


def profile(batches: Iterable[DocumentBatch], most_bytes: int = SAMPLE_BYTES) -> Profile:
    """Read batches until `most_bytes` are seen."""
    text = _Characters()
    lengths: list[np.ndarray[Any, Any]] = []
    keys: list[np.ndarray[Any, Any]] = []
    first_of: dict[int, str] = {}
    blank = seen = 0
    for batch in batches:
        sizes = np.diff(batch.starts)
        lengths.append(sizes)
        keys.append(batch.keys)
        blank += _blank(batch)
        text.add(_by_lines(batch) if seen < LOOKED_AT_BYTES else b"")
        _remember(batch, first_of)
        seen += len(batch.text)
        if seen >= most_bytes:
            break
    size, key = np.concatenate(lengths), np.concatenate(keys)
    values, counts = np.unique(size, return_counts=True)
    distinct, copies = np.unique(key, return_counts=True)
    common, most = int(np.argmax(counts)), int(np.argmax(copies))
    return Profile(
        documents=len(size),
        bytes=int(size.sum()),
        shortest=int(size.min()),
        median=int(np.median(size)),
        longest=int(size.max()),
        blank=blank,
        same_length=float(counts[common] / len(size)),
        common_length=int(values[common]),
        repeated=1 - len(distinct) / len(key),
        copies=int(copies[most]),
        most_repeated=first_of.get(int(distinct[most]), ""),
        **text.counts(),
    )


def _by_lines(batch: DocumentBatch) -> bytes:
    """Return the text with every document on lines of its own."""
    out = np.full(len(batch.text) + len(batch), ord("\n"), dtype=np.uint8)
    inside = np.ones(len(out), dtype=bool)
    inside[batch.starts[1:] + np.arange(len(batch))] = False
    out[inside] = batch.text
    return out.tobytes()


def _blank(batch: DocumentBatch) -> int:
    """Documents of white space only; of long ones the beginning is looked at first."""
    space = np.zeros(256, dtype=bool)
    space[list(b" \t\r\n\x0b\x0c")] = True
    inked = np.zeros(len(batch.text) + 1, dtype=np.int64)
    np.cumsum(~space[batch.text], out=inked[1:])
    return int((inked[batch.starts[1:]] == inked[batch.starts[:-1]]).sum())


def _remember(batch: DocumentBatch, first_of: dict[int, str]) -> None:
    """Keep the beginnings of the documents that a batch repeats most, to show them; of a batch of one, its own."""
    values, first, counts = np.unique(batch.keys, return_index=True, return_counts=True)
    for i in np.argsort(-counts)[:REMEMBERED]:
        if counts[i] > 1 or len(batch) == 1:
            start, stop = batch.starts[first[i]], batch.starts[first[i] + 1]
            text = batch.text[start : min(stop, start + 4 * SHOWN)].tobytes().decode("utf-8", "ignore")
            first_of.setdefault(int(values[i]), text[:SHOWN])


class _Characters:
    """Counts of signs of damage in running text."""

    def __init__(self) -> None:
        self._signs = Counter[str](dict.fromkeys(_SIGNS, 0))
        self._common: Counter[bytes] = Counter()
        self._values = np.zeros(256, dtype=np.int64)

    def add(self, text: bytes) -> None:
        if not text:
            return
        self._values += np.bincount(np.frombuffer(text, dtype=np.uint8), minlength=256)
        self._signs.update(looked_at=len(text), lines=text.count(b"\n"), carriage_returns=text.count(b"\r\n"))
        self._signs.update(control=len(_CONTROL.findall(text)), tags=len(_TAG.findall(text)))
        if not text.isascii():
            self._signs.update(replacements=text.count(_REPLACEMENT), mojibake=len(_MOJIBAKE.findall(text)))
        lines = Counter(line for line in text.split(b"\n") if len(line) > 1)
        self._common.update(dict(lines.most_common(COMMON_LINES)))

    def counts(self) -> dict[str, Any]:
        line, times = max(self._common.items(), key=lambda item: len(item[0]) * item[1], default=(b"", 0))
        common = int(np.argmax(self._values))
        whole = max(1, self._signs["looked_at"])
        return {
            **self._signs,
            "line_share": (len(line) * times if times > 1 else 0) / whole,
            "common_line": line[: 4 * SHOWN].decode("utf-8", "replace")[:SHOWN],
            "character_share": float(self._values[common] / whole),
            "common_character": chr(common) if common < 128 else f"byte {common:#04x}",
        }


# Judgements on the profile.

REPLACED, DAMAGED = 1e-5, 1e-3  # share of bytes from which signs of a wrong encoding are told, and refused
CONTROL = 1e-4  # share of bytes
TAGS = 0.005  # HTML tags a byte; Python's own sources have a thirtieth of that
ONE_LINE, ONE_CHARACTER = 0.2, 0.6  # share of the text; the blank is a fifth of English, and of tables up to half
REPEATED, MOSTLY_REPEATED = 0.05, 0.5
GENERATED_REPEATED, GENERATED_MOSTLY = 0.6, 0.95  # sums of few digits repeat by their nature
TINY_BYTES = 4  # half of the documents so short: the separator is a letter or a blank
ENORMOUS = 0.25  # share of the text in one document
MANY = 100  # documents or lines, with fewer of which shares say nothing
CUT_BYTES, SAME_LENGTH = 64, 0.5  # shorter documents have one length by nature, as sums or labels do


def _own_text(context: Context) -> bool:
    return isinstance(context.recipe.data.corpus, TextCorpus | UserCorpus)


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
    """Tell what share of the documents repeats one that came before."""
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
        lengths, shows="end", needs=("recipe", "data"), applies=attrgetter("has_text"), apart=False,
    ),
    Check(
        "data-duplicates", "documents are not copies of one another", "remove repetitions", duplicates,
        shows="end", needs=("recipe", "data"), applies=attrgetter("has_text"), apart=False,
    ),
)  # fmt: skip
