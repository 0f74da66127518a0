"""The files of a text corpus before anything reads them: that they are text at all, and what they seem to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.recipe import TextCorpus

from .context import Context
from .types import Check, Evidence, Findings, Say

if TYPE_CHECKING:
    from windtunnel.data import CorpusFile

HEAD_BYTES = 4096
MOST_FILES = 20_000
SHOWN = 3
_FORMATS = (
    (b"\x1f\x8b", "gzip", "gunzip it"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unzstd it"),
    (b"BZh", "bzip2", "bunzip2 it"),
    (b"\xfd7zXZ\0", "xz", "unxz it"),
    (b"PK\x03\x04", "zip (or a Word or Excel file)", "unzip it"),
    (b"PAR1", "Parquet", "write its text column as text or JSON lines"),
    (b"ARROW1", "Arrow", "write its text column as text or JSON lines"),
    (b"%PDF-", "PDF", "extract its text"),
    (b"\xff\xfe", "UTF-16", "iconv -f utf-16 -t utf-8"),
    (b"\xfe\xff", "UTF-16", "iconv -f utf-16 -t utf-8"),
    (b"SQLite format 3\0", "an SQLite database", "export its text"),
    (b"\x89HDF", "HDF5", "export its text"),
)
_POINTER = b"version https://git-lfs.github.com/spec/"
_PAGE = (b"<!doctype html", b"<html")
_ERRORS = (b"access denied", b"<error><code>", b"404 not found", b"not found", b"403 forbidden", b"rate limit")
ERROR_BYTES = 2048
"""Longer texts that begin like that are texts."""


def has_text(context: Context) -> bool:
    """Whether the corpus is the user's own text."""
    return isinstance(context.recipe.data.corpus, TextCorpus)


def head(file: CorpusFile) -> bytes:
    """The beginning of a file."""
    with open(file.path, "rb") as source:
        return source.read(HEAD_BYTES)


def is_json_lines(path: str, beginning: bytes) -> bool:
    """Whether a file holds a JSON object a line, by its name or its first line."""
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
    from windtunnel.data import corpus_files

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
        if is_json_lines(file.path, beginning):
            json_lines.append(file.path)
    for (what, fix), paths in problems.items():
        found.problem(f"{_some(paths)}: {what}, not text", fix)
    if json_lines and context.is_gpt:
        found.warn(
            f"{_some(json_lines)}: JSON lines are read as plain text: the model would learn braces and keys; "
            "write the texts themselves, and a separator between them"
        )
    same = _same_contents(listed)
    if same:
        found.warn(f"{same[0]} and {same[1]} have the same contents: list one of them")
    size = sum(file.size for file in listed)
    text = f"{len(listed):,} file{'s' if len(listed) != 1 else ''}, {size / 1e6:,.1f} MB: text by their first bytes"
    return found.evidence(text, {"files": len(listed), "bytes": size, "json_lines": len(json_lines)})


def _what_else(beginning: bytes, size: int) -> tuple[str, str] | None:
    """(what a file is instead of text, what to do), or None."""
    for magic, name, fix in _FORMATS:
        if beginning.startswith(magic):
            return f"this is {name}", fix
    if beginning.startswith(_POINTER):
        return "this is a Git LFS pointer of 3 lines, the data itself was not fetched", "git lfs pull"
    start = beginning.lstrip()[:200].lower()
    if start.startswith(_PAGE) and size < 100 * ERROR_BYTES:
        return "this is an HTML page, perhaps a download's error message", "download the file again and look at it"
    if size < ERROR_BYTES and start.startswith(_ERRORS):
        return "this is the error message of a download", "download the file again"
    return None


def _same_contents(listed: list[CorpusFile]) -> tuple[str, str] | None:
    """Two files with the same contents, among those of the same size."""
    import xxhash

    by_size: dict[int, list[str]] = {}
    for file in listed:
        by_size.setdefault(file.size, []).append(file.path)
    seen: dict[tuple[int, str], str] = {}
    for size, paths in by_size.items():
        for path in paths if len(paths) > 1 and size >= HEAD_BYTES // 16 else ():
            with open(path, "rb") as source:
                key = size, xxhash.xxh3_128_hexdigest(source.read(1 << 24))
            if key in seen:
                return seen[key], path
            seen[key] = path
    return None


def _some(paths: list[str]) -> str:
    more = f" and {len(paths) - SHOWN:,} more" if len(paths) > SHOWN else ""
    return ", ".join(paths[:SHOWN]) + more


CHECKS = (
    Check(
        "data-files", "the corpus's files are there and are text", "look at data.corpus.files", files,
        shows="start", needs=("recipe",), applies=has_text,
    ),
)  # fmt: skip
