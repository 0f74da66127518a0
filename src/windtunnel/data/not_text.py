"""Files that are not the UTF-8 text that they should be: what they are by their first bytes, and how to make text of them."""

from __future__ import annotations

import codecs
import shlex
from pathlib import Path

from windtunnel.recipe import UserError

_MAGIC = (
    (b"BZh", "bzip2", "bunzip2 it; gzip and zstd are read as they are"),
    (b"\xfd7zXZ\0", "xz", "unxz it; gzip and zstd are read as they are"),
    (b"PK\x03\x04", "zip (or a Word or Excel file)", "unzip it"),
    (b"7z\xbc\xaf\x27\x1c", "7z", "unpack it"),
    (b"%PDF-", "PDF", "extract its text"),
    (b"SQLite format 3\0", "an SQLite database", "export its text"),
    (b"\x89HDF", "HDF5", "export its text"),
)
_POINTER = b"version https://git-lfs.github.com/spec/"
_TAR, _TAR_AT = b"ustar", 257


def what_else(head: bytes) -> tuple[str, str] | None:
    """Return (what a file is instead of text, what to do) by its first bytes, decompressed; None where nothing is known."""
    for magic, name, fix in _MAGIC:
        if head.startswith(magic):
            return name, fix
    if head[_TAR_AT:].startswith(_TAR):
        return "a tar archive", "unpack it: tar xf"
    if head.startswith(_POINTER):
        return "a Git LFS pointer of 3 lines; the data itself was not fetched", "git lfs pull"
    return None


def refuse_other(path: str, head: bytes) -> None:
    """Raise a UserError that names the fix if a file is known to be no text."""
    refuse_utf16(path, head)
    found = what_else(head)
    if found is not None:
        raise UserError(f"data.corpus.files: {path} is {found[0]}", found[1])


def refuse_utf16(path: str, head: bytes) -> None:
    """Raise a UserError that names the fix if text begins as UTF-16 or UTF-32 does, with a byte order mark or without."""
    name = None
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        name = "utf-32"
    elif head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        name = "utf-16"
    # Plain binary files have zeros too, but not in every second place.
    elif len(head) >= 16 and head[:64].count(0) >= len(head[:64]) // 3:
        # ASCII as UTF-16 has a zero in every second byte.
        even, odd = head[:64:2].count(0), head[1:64:2].count(0)
        name = "utf-16le" if odd > 4 * even else "utf-16be" if even > 4 * odd else None
    if name is not None:
        raise UserError(f"data.corpus.files: {path} is {name.upper()}, expected UTF-8", to_utf8(path, name))


def to_utf8(path: str, encoding: str = "") -> str:
    """Return how a file is converted to UTF-8; without an encoding by a guess that is called one."""
    kept = Path(path)
    unpack = {".gz": "zcat", ".gzip": "zcat", ".zst": "zstdcat", ".zstd": "zstdcat"}.get(kept.suffix)
    kept = kept.with_suffix("") if unpack else kept
    target = shlex.quote(str(kept.with_name(f"{kept.stem}.utf8{kept.suffix}")))
    convert = f"iconv -f {encoding or 'cp1252'} -t utf-8"
    command = f"{unpack} {shlex.quote(path)} | {convert}" if unpack else f"{convert} {shlex.quote(path)}"
    guess = "" if encoding else " (or -f the encoding that it was written in)"
    return f"convert it: {command} > {target}{guess}"
