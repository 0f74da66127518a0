"""A few megabytes of a large text corpus: the beginnings of its files, an equal share of each, cut at documents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.recipe import UserError

if TYPE_CHECKING:
    from windtunnel.data import CorpusFile

MOST_FILES = 200


def write_excerpt(files: Sequence[CorpusFile], separator: str | None, folder: Path, size: int) -> list[Path]:
    """Write about `size` bytes of the files into `folder`, with the same separator; returns the new files.

    Raises:
        UserError: a file cannot be read or the folder not be written.
    """
    step = -(-len(files) // MOST_FILES)
    chosen = files[::step]
    share = max(1, size // len(chosen))
    made = []
    try:
        folder.mkdir(exist_ok=True)
        for number, file in enumerate(chosen):
            path = folder / f"{number:04d}.txt"
            with open(file.path, "rb") as source:
                path.write_bytes(_cut(source.read(share + 1), share, (separator or "\n").encode()))
            made.append(path)
    except OSError as error:
        raise UserError(f"excerpt of the corpus: {error.filename}: {error.strerror or error}") from None
    return made


def _cut(text: bytes, size: int, mark: bytes) -> bytes:
    """At most `size` bytes, ending at the last mark if that keeps half of them, else between characters."""
    if len(text) <= size:
        return text
    found = text.rfind(mark, size // 2, size)
    if found >= 0:
        return text[:found]
    while size > 0 and text[size] & 0xC0 == 0x80:
        size -= 1
    return text[:size]
