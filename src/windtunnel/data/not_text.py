"""Files that are not the UTF-8 text that they should be: what they are by their first bytes, and how to make text of them."""

from __future__ import annotations

import codecs
import json
import shlex
from pathlib import Path
from typing import Any

from windtunnel.recipe import UserError

_MAGIC = (
    (b"BZh", "bzip2", "bunzip2 it; gzip and zstd are read as they are"),
    (b"\xfd7zXZ\0", "xz", "unxz it; gzip and zstd are read as they are"),
    (b"PK\x03\x04", "zip (or a Word or Excel file)", "unzip it"),
    (b"7z\xbc\xaf\x27\x1c", "7z", "unpack it"),
    (b"%PDF-", "PDF", "extract its text"),
    (b"SQLite format 3\0", "an SQLite database", "export its text"),
    (b"\x89HDF", "HDF5", "export its text"),
    (b"\x1f\x8b", "gzip within gzip or zstd", "unpack it once; gzip and zstd are read as they are"),
    (b"\x28\xb5\x2f\xfd", "zstd within gzip or zstd", "unpack it once; gzip and zstd are read as they are"),
)
_POINTER = b"version https://git-lfs.github.com/spec/"
_TAR, _TAR_AT = b"ustar", 257
_SEPARATED = {".csv": ("commas", ""), ".tsv": ("tabs", 'delimiter="\\t", ')}
_UNPACK = {".gz": "zcat", ".gzip": "zcat", ".zst": "zstdcat", ".zstd": "zstdcat"}
# Of text in the Latin alphabet few bytes lie above ASCII; of others as single or double bytes nearly all letters do.
_MOSTLY_HIGH = 0.3


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


def refuse_by_name(path: str, head: bytes, *, text: bool) -> None:
    """Raise a UserError where a file's contents are not what its name says, or are a table or page that nobody means to learn.

    `text` says that the file may be trained on as it is; else records are expected.
    """
    name, unpack = _unpacking(path)
    start = head.removeprefix(codecs.BOM_UTF8).lstrip()[:40]
    if name.suffix.lower() == ".parquet":
        begins = start[:20].decode("utf-8", "replace")
        raise UserError(f"data.corpus.files: {path} is not Parquet: it begins with {begins!r}", "download it again, or rename it")
    if start[:15].lower().startswith((b"<!doctype html", b"<html")):
        fix = f"give {'its text' if text else 'JSON lines or Parquet'}; or download it again, if a site's answer is in its place"
        fix += "; or --set data.corpus.format=text to train on its tags" if text else ""
        raise UserError(f"data.corpus.files: {path} is a web page (HTML)", fix)
    if name.suffix.lower() in _SEPARATED:
        marks, delimiter = _SEPARATED[name.suffix.lower()]
        # Rows that are longer than a block of the reader's, 1 MiB by itself, are refused by it.
        options = f"csv.ReadOptions(block_size=64 << 20), csv.ParseOptions({delimiter}newlines_in_values=True)"
        codec = {"zcat": "gzip", "zstdcat": "zstd"}.get(unpack)
        given = f"input_stream({path!r}, compression={codec!r})"
        target = str(name.with_suffix(".table.parquet"))
        code = f"from pyarrow import csv, input_stream, parquet; t = csv.read_csv({given}, {options}); "
        code += f"parquet.write_table(t, {target!r})"
        what = f"whose names, quotes and {marks} would be trained on" if text else "expected JSON lines or Parquet"
        fix = f"python -c {shlex.quote(code)}, and name that"
        fix += "; or --set data.corpus.format=text to train on it as it is" if text else ""
        raise UserError(f"data.corpus.files: {path} is a table, {what}", fix)


def to_utf8(path: str, encoding: str = "", sample: bytes = b"") -> str:
    """Return how a file is converted to UTF-8; without an encoding by a guess, from some of its bytes, that is called one."""
    guess = "" if encoding else " (or -f the encoding that it was written in)"
    encoding = encoding or "cp1252"
    if guess and sum(byte >= 0x80 for byte in sample[:4096]) > _MOSTLY_HIGH * len(sample[:4096]):
        encoding, guess = "gb18030", " (or -f big5, shift_jis, euc-kr, cp1251: the encoding that it was written in)"
    suffix = _unpacking(path)[0].suffix
    return f"convert it: {_piped(path, f'iconv -f {encoding} -t utf-8', f'.utf8{suffix}')}{guess}"


def _piped(path: str, command: str, suffix: str) -> str:
    """Return the shell's line that runs a command on a file, unpacked where it is packed, into another beside it."""
    name, unpack = _unpacking(path)
    target = shlex.quote(str(name.with_suffix(suffix)))
    source = shlex.quote(f"./{path}" if path.startswith("-") else path)  # or it would be an option
    return f"{unpack} {source} | {command} > {target}" if unpack else f"{command} {source} > {target}"


def _unpacking(path: str) -> tuple[Path, str]:
    """Return a path without the ending that says that it is packed, and the command that unpacks it, empty if none does."""
    name = Path(path)
    unpack = _UNPACK.get(name.suffix.lower(), "")
    return (name.with_suffix("") if unpack else name), unpack


def by_jq(path: str, program: str) -> str:
    """Return the shell's line that makes JSON lines of a file of JSON with jq."""
    return f"{_piped(path, f'jq -c {shlex.quote(program)}', '.lines.jsonl')}, and name that"


def one_array(path: str, text: bytes) -> UserError:
    """Return the error for a file of JSON that is one value: an array, of objects or of other things, or one object."""
    if text.startswith(b"{"):
        fix = 'write {"text": ...} a line for each document, or --set data.corpus.format=text to train on braces and keys'
        return UserError(f"data.corpus.files: {path} is one JSON object, expected an object a line", fix)
    take = ".[]" if text[1:].lstrip().startswith(b"{") else ".[] | {text: .}"
    return UserError(f"data.corpus.files: {path} is one JSON array, expected an object a line", by_jq(path, take))


def no_array(path: str, error: ValueError) -> UserError:
    """Return the error for a file that begins as a JSON array; where each line is one, of messages, jq makes records of them."""
    if "Extra data" in str(error):
        return UserError(f"data.corpus.files: {path} has more than one JSON array", by_jq(path, "{messages: .}"))
    return UserError(f"data.corpus.files: {path} is not JSON: {error}", "download or write it again")


def not_json(path: str, number: int, line: bytes, error: ValueError) -> UserError:
    """Return the error for a line that is not JSON; where objects are many on one line, or lie over several, jq can part them."""
    shown = line[:60].decode("utf-8", "replace").strip()
    parted = number == 1 and (line.strip() == b"{" or (line.startswith(b"{") and "Extra data" in str(error)))
    fix = "write one JSON object a line" + (f": {by_jq(path, '.')}" if parted else "")
    return UserError(f"{path}:{number}: not JSON: {error} ({shown!r})", fix)


def no_object(path: str, number: int, value: Any) -> UserError:
    """Return the error for a line of JSON that is another value than an object."""
    texts = number == 1 and isinstance(value, str)
    fix = "write one object a line" + (f": {by_jq(path, '{text: .}')}" if texts else "")
    return UserError(f"{path}:{number}: expected a JSON object, found {type(value).__name__}", fix)


# What questions and answers are called elsewhere.
_ASKED = ("prompt", "instruction", "question", "input", "query", "problem", "user")
_BESIDE = ("context", "input", "question")  # what a question is about, or the question of an instruction
_SYSTEM = ("system", "system_prompt", "system_message")
_SAID = ("completion", "response", "answer", "output", "chosen", "solution", "assistant")


def as_completions(path: str, record: dict[str, Any], *, table: bool) -> str | None:
    """Return how records with a question and an answer under other names are given ours; None where there are no such two."""
    names = {name.lower(): name for name, value in record.items() if isinstance(value, str)}
    asked = next((names[name] for name in _ASKED if name in names), None)
    said = next((names[name] for name in _SAID if name in names), None)
    if asked is None or said is None:
        return None
    # Other records may have text where this one has none.
    names = {name.lower(): name for name, value in record.items() if value is None or isinstance(value, str)}
    beside = [names[name] for name in _BESIDE if name in names and names[name] != asked]
    system = [names[name] for name in _SYSTEM if name in names]
    if len(beside) > 1 or len(system) > 1:
        return None
    ours = {"prompt": asked, "completion": said}
    if beside or system:  # Alpaca's format has a place for them
        more = [*(("input", name) for name in beside), ("output", said), *(("system", name) for name in system)]
        ours = {"instruction": asked, **dict(more)}
    if not table:
        return by_jq(path, "{" + ", ".join(f"{name}: .{_in_jq(theirs)}" for name, theirs in ours.items()) + "}")
    code = f"from pyarrow import parquet; t = parquet.read_table({path!r}).select({list(ours.values())}); "
    code += f"parquet.write_table(t.rename_columns({list(ours)}), {str(Path(path).with_suffix('.pairs.parquet'))!r})"
    return f"python -c {shlex.quote(code)}, and name that"


def without_nulls(path: str, names: list[str], *, table: bool) -> str:
    """Return how records without text are left out of JSON lines, or of Parquet; the names lead to it, the outermost first."""
    if not table:
        return by_jq(path, f"select(.{''.join(map(_in_jq, names))} != null)")
    texts = f"compute.struct_field(t[{names[0]!r}], {names[1:]})" if names[1:] else f"t[{names[0]!r}]"
    code = f"from pyarrow import compute, parquet; t = parquet.read_table({path!r}); "
    code += f"parquet.write_table(t.filter(compute.is_valid({texts})), {str(Path(path).with_suffix('.filled.parquet'))!r})"
    return f"python -c {shlex.quote(code)}, and name that"


def _in_jq(name: str) -> str:
    return f"[{json.dumps(name, ensure_ascii=False)}]"
