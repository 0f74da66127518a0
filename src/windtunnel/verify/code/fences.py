"""The code in an answer: fenced blocks as Markdown has them, also indented ones. Plain scanning, whose time grows as the text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

PYTHON = re.compile(r"(?:py|python)[\d.]*(?![\w-])", re.IGNORECASE)
# Before the signs of a fence: blanks, and at most one mark of a list.
BEFORE = re.compile(r"[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)?")
SIGNS = ("`", "~")
SHORTEST = 3
# How much further than an indented fence its end may be.
FURTHER = 3
QUOTES = re.compile("\"\"\"|'''")


@dataclass
class _Block:
    """A fence that was opened, and what follows it. indent: what stands before it, with blanks for a list's mark. at: where."""

    indent: str
    sign: str
    count: int
    language: str
    lines: list[str] = field(default_factory=list)
    closed: bool = False
    at: int = 0

    @property
    def opens(self) -> bool:
        """Not where more backticks follow: that is code within a line."""
        return self.sign != "`" or "`" not in self.language

    def ended_by(self, fence: _Block, quote: str) -> bool:
        """Return whether a fence ends this block: as many signs of its own, not much further to the right.

        Text after them begins another block: this one was left open.

        quote: three quotes that are open there; a fence in a text of the code's is mostly indented.
        """
        most = len(self.indent) + (0 if quote else FURTHER)
        return fence.sign == self.sign and fence.count >= self.count and len(fence.indent) <= most

    @property
    def text(self) -> str:
        """The lines without the fence's indentation, or what the first of them has of it: some write the code at the margin."""
        first = next((line for line in self.lines if line.strip()), "")
        most = len(self.indent) if first.startswith(self.indent) else _blanks(first)
        return "".join(f"{line[min(most, _blanks(line)) :] if most else line}\n" for line in self.lines)


def source_of(answer: str, name: str = "") -> str:
    """Return the code in an answer: the last fenced block of Python, also one whose end is missing.

    Where none says so it is the last one without a language, which may else be what the code prints; all of the answer when there
    is no block.

    name: of what the code is to define; a later block without it may show how it is used.
    """
    block = _chosen(answer, name)
    return (answer if block is None else block.text).removeprefix("\ufeff")  # which Python's own files may begin with


def source_begins(answer: str, name: str = "") -> int:
    """Return where in an answer the line with the fence of `source_of`'s code begins; 0 where there is no block."""
    block = _chosen(answer, name)
    return 0 if block is None else block.at


def _chosen(answer: str, name: str) -> _Block | None:
    found = _blocks(answer)
    blocks = [block for block in found if PYTHON.match(block.language)]
    plain = [block for block in found if not block.language]
    # One without a language and without an end may be a fence too many.
    blocks = blocks or [block for block in plain if block.closed] or [block for block in plain if block.text.strip()]
    blocks = [block for block in blocks if _defines(block.text, name)] or blocks
    # The last one: answers correct themselves.
    return blocks[-1] if blocks else None


def _defines(code: str, name: str) -> bool:
    """Return whether code defines this name, by its looks: it may not parse."""
    defined = rf"^[ \t]*(?:(?:async[ \t]+)?def|class)[ \t]+{re.escape(name)}\b|^{re.escape(name)}[ \t]*[:=]"
    return bool(name) and re.search(defined, code, re.MULTILINE) is not None


def _blocks(answer: str) -> list[_Block]:
    """Return all blocks.

    What looks like an indented fence, or like one of tildes (a heading's line), inside a text in three quotes is a part of code.
    """
    blocks: list[_Block] = []
    inside: _Block | None = None
    quote, at = "", 0
    for line in answer.split("\n"):
        fence = _fence(line)
        if fence is not None:
            fence.at = at
        at += len(line) + 1
        if inside is None:
            if fence is not None and fence.opens and not (quote and (fence.indent or fence.sign == "~")):
                inside, quote = fence, ""
                blocks.append(fence)
                continue
        elif fence is not None and inside.ended_by(fence, quote):
            inside.closed = True
            inside, quote = fence if fence.opens and fence.language else None, ""
            blocks += [inside] if inside else []
            continue
        else:
            inside.lines.append(line)
        quote = _left_open(line, quote)
    return blocks


def _fence(line: str) -> _Block | None:
    """Return the fence that a line is, with what follows its signs as the language."""
    if "```" not in line and "~~~" not in line:
        return None
    before = BEFORE.match(line)
    at = before.end() if before else 0
    sign = line[at : at + 1]
    if sign not in SIGNS:
        return None
    count = len(line) - at - len(line[at:].lstrip(sign))
    if count < SHORTEST:
        return None
    indent = "".join(blank if blank in " \t" else " " for blank in line[:at])
    return _Block(indent, sign, count, line[at + count :].strip().lstrip("{. "))


def _blanks(line: str) -> int:
    """Return how many blanks a line begins with."""
    return len(line) - len(line.lstrip(" \t"))


def _left_open(line: str, quote: str) -> str:
    """Return the three quotes of the text that is open after a line, '' when none is. quote: those before it."""
    for found in QUOTES.findall(line) if len(line) > 2 else ():
        if not quote:
            quote = found
        elif found == quote:
            quote = ""
    return quote
