"""Reading what a user names: a file or a pipe, as text, and not more of it than may be; and showing what a user gave."""

from __future__ import annotations

import codecs
import stat
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from windtunnel.recipe import UserError

MOST_SHOWN = 80


def read_text(name: str | Path, most: int, what: str, *, stdin: bool = False, cut: bool = False) -> str:
    """Return what a file holds, or a pipe, without a byte order mark.

    what: how to call it in messages. stdin: whether '-' is standard input. cut: of what is longer one byte more than most is
    read, for a judge to refuse.

    Raises:
        UserError: it cannot be read, is neither file nor pipe (a device never ends), is longer, or is no UTF-8.
    """
    try:
        data = sys.stdin.buffer.read(most + 1) if stdin and str(name) == "-" else _read(Path(name), most, what)
    except OSError as error:
        fix = "name a readable file" + (", or - for standard input" if stdin else "")
        raise UserError(f"{what}: {error.strerror or error}", fix) from None
    if len(data) > most and not cut:
        raise UserError(f"{what} is longer than {most:,} bytes", "give a shorter one")
    try:
        # A text that is cut may end within a character, which is no fault of it.
        return codecs.getincrementaldecoder("utf-8-sig")().decode(data, final=len(data) <= most)
    except UnicodeDecodeError as error:
        raise UserError(f"{what}: not UTF-8 text at byte {error.start}", "give text") from None


def shown(value: Any) -> str:
    """Return a value in a message: as Python writes it, and not more of it than a line holds."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."


def only_known(spec: Mapping[str, Any], known: Collection[str], kind: str) -> None:
    """Refuse a task with a key that its kind does not know: one misspelt would be a test that nobody runs.

    Raises:
        UserError: there is one; names those that are known.
    """
    if unknown := sorted(set(spec) - set(known)):
        raise UserError(f"{kind} task: unknown key {shown(unknown[0])}", f"known keys: {', '.join(sorted(known))}")


def flag_of(spec: Mapping[str, Any], key: str, kind: str, default: bool = False) -> bool:
    """Return a truth value of a task. Raises UserError where it is another one."""
    value = spec.get(key, default)
    if not isinstance(value, bool):
        raise UserError(f"{kind} task: {key} is {shown(value)}", "give true or false")
    return value


def without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON's, for its reader (`object_pairs_hook`).

    Of a key that comes twice some readers take the first value and some the last.

    Raises:
        ValueError: a key comes twice.
    """
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {name[:40]!r} comes twice")
        found[name] = value
    return found


def _read(path: Path, most: int, what: str) -> bytes:
    # Asked before it is opened: a device or a socket may never end, or answer.
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
        raise UserError(f"{what} is a {_kind(mode)}", "name a file or a pipe")
    with path.open("rb") as file:
        return file.read(most + 1)


def _kind(mode: int) -> str:
    return "folder" if stat.S_ISDIR(mode) else "device" if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else "socket"
