"""What a text says about its own encoding: Python decodes a file by it, so that other code would run than was read."""

from __future__ import annotations

import codecs
import re

# Wherever in these lines it stands: what counts as a comment is left to the tokenizer.
DECLARED = re.compile(r"#.*?coding[:=][ \t]*([-\w.]+)")


def other_encoding(source: str) -> str | None:
    """The encoding other than UTF-8 that a comment at the start declares, or None. The file is written so that Python would not
    follow it either."""
    head = "\n".join(re.split(r"\r\n|\r|\n", source)[:2])
    for declared in DECLARED.finditer(head):
        if not _is_utf8(declared[1]):
            return declared[1]
    return None


def said_of_encoding(name: str) -> str:
    """What is wrong with a declared encoding, in words. Python takes any words such as `# decoding: one row` for one."""
    try:
        codecs.lookup(name)
    except LookupError:
        return (
            f"Python reads a comment in the first two lines as one that declares the encoding {name}, which it does not know, "
            "and would not run the file. Write the comment otherwise, without 'coding:' or 'coding='."
        )
    return f"A comment at the start declares the encoding {name}. Take it out."


def _is_utf8(name: str) -> bool:
    try:
        return codecs.lookup(name).name in ("utf-8", "utf-8-sig")
    except LookupError:
        return False
