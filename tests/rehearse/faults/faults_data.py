"""Faults in text: files that are no text, damaged text, repetitions, leaks, too little of it."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable

from planting import Plant, Site, group, sets
from sites import charlm, rewrite, text

LOCAL = "Zhang et al. 2020 (Microsoft, 4,960 failed jobs): paths, permissions and formats that differ between machines"
DATA_BUG = "debugging guide, what can go wrong: data loading bug found after 4 hours"
FORMAT = "DeepSeek-V3 guide, medium risk: data format mismatch"
QUALITY = "DeepSeek-V3 guide, CPU tests: data quality checks, time-based split validation"
OVERFIT = "$1,000 guide: 34 epochs over 350 M tokens, overfitting seen late"
ONE_INPUT = "DeepSeek-V3 project: 7,496 records with one distinct input"
ALPHABET = "$1,000 project: unknown characters vanished silently; prompts with '=' outside the vocabulary"


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123456789\n"
PAGE = b"<!DOCTYPE html><html><head><title>403 Forbidden</title></head><body>no</body></html>"
FOOTER = "Subscribe to our newsletter for more stories like this one, every single day of the whole long week."
FEW_SUMS = sets("data.corpus.digits=1", "data.corpus.terms=2")


def first_file(content: bytes) -> Plant:
    """Put other bytes in the place of the first file."""

    def plant(site: Site) -> None:
        site.file("books/a.txt", content)

    return plant


def alphabet(characters: str) -> Plant:
    return sets("data.tokenizer.kind=character", f"data.tokenizer.alphabet={characters}")


def missing(site: Site) -> None:
    for path in (site.folder / "books").iterdir():
        path.unlink()


def dangling(site: Site) -> None:
    (site.folder / "books/a.txt").unlink()
    (site.folder / "books/a.txt").symlink_to(site.folder / "not-copied.txt")
    assert isinstance(site.recipe, dict)
    site.recipe["data"]["corpus"]["files"] = ["books/a.txt", "books/b.txt"]


def folder(site: Site) -> None:
    assert isinstance(site.recipe, dict)
    site.recipe["data"]["corpus"]["files"] = [str(site.folder / "books")]


def listed_empty(site: Site) -> None:
    site.file("books/a.txt", b"")
    assert isinstance(site.recipe, dict)
    site.recipe["data"]["corpus"]["files"] = [str(site.folder / "books/a.txt"), str(site.folder / "books/b.txt")]


def same_file_twice(site: Site) -> None:
    (site.folder / "books/c.txt").write_bytes((site.folder / "books/a.txt").read_bytes())


def json_lines(site: Site) -> None:
    site.lines(
        "books/a.txt", [{"text": line, "id": i} for i, line in enumerate((site.folder / "books/a.txt").read_text().split("\n\n"))]
    )


def latin1(site: Site) -> None:
    rewrite(site, lambda documents: documents)
    path = site.folder / "books/b.txt"
    path.write_bytes(path.read_bytes() + "\n\nCafé".encode("latin-1"))


def mojibake(site: Site) -> None:
    def twice(documents: list[str]) -> list[str]:
        return [d.replace("other", "café’s").encode().decode("cp1252", "replace") for d in documents]

    rewrite(site, twice)


def separator(value: str) -> Plant:
    def plant(site: Site) -> None:
        assert isinstance(site.recipe, dict)
        site.recipe["data"]["corpus"]["separator"] = value

    return plant


def change(function: Callable[[list[str]], list[str]]) -> Plant:
    """Change the documents of both files."""
    return lambda site: rewrite(site, function)


def each(function: Callable[[str], str]) -> Plant:
    """Change every document."""
    return change(lambda documents: [function(document) for document in documents])


def near_copies(documents: list[str]) -> list[str]:
    draw = random.Random(5)
    copies = []
    for document in documents:
        words = document.split()
        words[draw.randrange(3)] = "zebra"
        copies.append(" ".join(words))
    return [*documents, *copies]


def skipped_marks(site: Site) -> None:
    """Documents that differ only in a character which the tokenizer leaves out."""
    rewrite(site, lambda documents: [d + mark for d in documents for mark in ("", "~")])
    assert isinstance(site.recipe, dict)
    site.recipe["data"]["tokenizer"] = {
        "kind": "character", "unknown": "skip", "alphabet": "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .\n",
    }  # fmt: skip


def too_little(site: Site) -> None:
    rewrite(site, lambda documents: documents[:2])
    site.set("model.sequence=2048")


FAULTS = (
    *group("data", "data-files", text)(
        ("text files missing on this machine", LOCAL, "matches no file", missing),
        ("a file that is a broken link", LOCAL, "cannot be read", dangling),
        ("a folder where a file is expected", LOCAL, "is a directory", folder),
        ("an empty file", FORMAT, "is empty", listed_empty),
        ("gzip that breaks off", FORMAT, "damaged gzip", first_file(gzip.compress(b"text " * 999)[:-9])),
        ("Parquet without its table", FORMAT, "parquet", first_file(b"PAR1" + bytes(99) + b"PAR1")),
        (
            "a Git LFS pointer in the data's place",
            "DeepSeek-V3 guide, model download with Git LFS",
            "git lfs pull",
            first_file(POINTER),
        ),
        ("a download's error page in the data's place", LOCAL, "html page", first_file(PAGE)),
        ("UTF-16 text", FORMAT, "utf-16", first_file("\ufeffwords".encode("utf-16-le"))),
        ("the same file under two names", QUALITY, "same contents", same_file_twice),
        ("JSON lines read as plain text", FORMAT, ("json lines", "plain text"), json_lines),
    ),
    *group("data", "data", text)(
        ("Latin-1 in the middle of a file", DATA_BUG, "not utf-8", latin1),
        ("NUL bytes", DATA_BUG, "nul byte", change(lambda d: [*d, "\0\0\0"])),
        ("all documents alike", ONE_INPUT, "none different", change(lambda d: ["Same."] * 9)),
        ("a character outside the alphabet", ALPHABET, "is not in data.tokenizer.alphabet", alphabet("abc")),
        ("a character twice in the alphabet", ALPHABET, "given twice", alphabet("aab")),
        ("a GPT on data that is only counted", FORMAT, "no text to train on", sets("data.corpus.kind=counted")),
    ),
    *group("data", "data-text", text)(
        ("text decoded twice", QUALITY, "decoded twice", mojibake),
        ("bytes lost in an earlier conversion", QUALITY, "u+fffd", each(lambda x: x.replace("who", "wh\ufffd"))),
        ("a terminal's log among the text", QUALITY, "control characters (", each(lambda x: "\x1b[31m" + x)),
        ("Windows line ends", QUALITY, "cr lf", each(lambda x: x.replace(" ", "\r\n"))),
        ("HTML that was not stripped", QUALITY, "extract the text from the pages", each(lambda x: f"<div><p>{x}</p></div>")),
        ("one line again and again", QUALITY, "again and again", each(lambda x: f"{x}\n{FOOTER}")),
        ("padding left in the text", QUALITY, "padding", each(lambda x: x + "_" * 900)),
    ),
    *group("data", "data-lengths", text)(
        ("a separator that never occurs", DATA_BUG, "occurs in none", separator("<|endoftext|>")),
        ("a separator that cuts words", DATA_BUG, "cuts too often", separator(" ")),
        ("blank documents", DATA_BUG, "white space only", change(lambda d: [y for x in d for y in (x, " \t ")])),
        ("one enormous document", DATA_BUG, "a file that was not split", change(lambda d: [*d[1:], " ".join(d * 9)])),
        ("documents all cut to one length", QUALITY, "cut at export", each(lambda x: x[:100])),
    ),
    *group("data", "data-duplicates", text)(
        ("most documents are copies", QUALITY, "remove repetitions", change(lambda d: d + d[:400] * 5))
    ),
    *group("data", "data-duplicates", charlm)(
        ("more sums than there are different ones", OVERFIT, "raise data.corpus.digits", FEW_SUMS)
    ),
    *group("data", "data-answers", charlm)(("few different questions", ONE_INPUT, "only", FEW_SUMS)),
    *group("data", "data-splits", text)(
        ("near copies of held-out text in training", QUALITY, "near copies of training", change(near_copies)),
        ("held-out text in training once characters are skipped", QUALITY, "in training too", skipped_marks),
    ),
    *group("data", "data-amount", text)(
        ("less text than a sequence", OVERFIT, "one sequence takes", too_little),
        ("a validation split too small to mean anything", OVERFIT, "would be chance", sets("data.validation=0.0005")),
        ("a step larger than the corpus", OVERFIT, "every step would repeat", sets("stages.pretrain.batch_tokens=4M")),
    ),
)
