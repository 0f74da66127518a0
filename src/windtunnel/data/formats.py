"""What the files of a corpus are, and streams of their bytes or records: decompressed on the way, memory bounded."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal

from windtunnel.recipe import UserError, parse_json

from .not_text import by_jq, no_array, no_object, not_json, one_array, refuse_by_name, refuse_other, to_utf8

Form = Literal["text", "jsonl", "array", "parquet", "arrow"]

LONGEST_LINE = 64 << 20  # a line is held whole; longer ones are files without line ends
LARGEST_ARRAY = 4 << 30  # Python's objects of it take several times as much
BOM = codecs.BOM_UTF8
_GZIP, _ZSTD, _PARQUET = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"
_ZSTD_ASIDE = b"\x2a\x4d\x18"  # behind 0x50 to 0x5f: a frame for other programs, such as pzstd, which may come first
_ARROW = (b"ARROW1", b"\xff\xff\xff\xff")  # a file, a stream
_HEAD = 64 << 10  # a first record may be long, and fewer bytes would end inside it
_LINES = 20  # of the head, by which a text is told from JSON lines
_ZSTD_BLOCK = 32 << 10  # compressed bytes taken at once: even a bomb then grows by megabytes, not by gigabytes
_ROWS = 1024  # of a table at once: rows become Python objects, which are large
_PART = 1 << 20


def unreadable(path: str, error: OSError) -> UserError:
    """Return the error for a file that the operating system refuses."""
    return UserError(f"data.corpus.files: {path} cannot be read: {error.strerror}", "check the path and its permissions")


def open_bytes(path: str) -> IO[bytes]:
    """Open a file as a stream of bytes; gzip and zstd, known by their first bytes, are decompressed.

    Raises:
        UserError: the file cannot be opened.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115 - the caller closes it
    except OSError as error:
        raise unreadable(path, error) from None
    start = file.peek(4)
    if start.startswith(_GZIP):
        return io.BufferedReader(_Gzip(path, file), 1 << 20)
    if start.startswith(_ZSTD) or (start[1:4] == _ZSTD_ASIDE and start[0] >> 4 == 5):
        return io.BufferedReader(_Zstd(path, file), 1 << 20)
    return file


class _Gzip(io.RawIOBase):
    """A gzip file whose damage is told with its name."""

    def __init__(self, path: str, file: IO[bytes]) -> None:
        self._path, self._file, self._inner = path, file, gzip.GzipFile(fileobj=file)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._inner.read1(len(buffer))
        except (EOFError, OSError, zlib.error) as error:
            raise UserError(
                f"data.corpus.files: {self._path} is damaged gzip: {error}", "download or compress it again"
            ) from None
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


class _Zstd(io.RawIOBase):
    """A zstd file of any number of frames. A file that ends inside a frame is an error, not a shorter text."""

    def __init__(self, path: str, file: IO[bytes]) -> None:
        import zstandard

        self._path, self._file, self._zstd = path, file, zstandard
        self._frame: Any = None
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            block = self._file.read(_ZSTD_BLOCK)
            if not block:
                if self._frame is not None:
                    raise self._damage("it ends in the middle")
                return 0
            self._ready = memoryview(b"".join(self._decompress(block)))
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _decompress(self, block: bytes) -> Iterator[bytes]:
        while block:
            if self._frame is None:
                self._frame = self._zstd.ZstdDecompressor().decompressobj()
            try:
                yield self._frame.decompress(block)
            except self._zstd.ZstdError as error:
                raise self._damage(str(error)) from None
            block = b""
            if self._frame.eof:
                block, self._frame = self._frame.unused_data, None

    def _damage(self, what: str) -> UserError:
        return UserError(f"data.corpus.files: {self._path} is damaged zstd: {what}", "download or compress it again")

    def close(self) -> None:
        self._file.close()
        super().close()


def form_of(path: str, declared: str = "auto") -> Form:
    """Return what a file holds: as declared, else by its first bytes and its name.

    Args:
        path: of the file; also compressed.
        declared: text, jsonl, parquet (or Arrow), records (any of them but text), or auto.

    Raises:
        UserError: the file is not what was declared; it is UTF-16, packed or no text; it is JSON and not
            declared, other than an object a line.
    """
    with open_bytes(path) as file:
        try:
            head = file.read(_HEAD)
        except OSError as error:
            raise unreadable(path, error) from None
    if head.startswith(_PARQUET):
        found: Form = "parquet"
    elif head.startswith(_ARROW):
        found = "arrow"
    else:
        refuse_other(path, head)
        begins = head.removeprefix(BOM).lstrip()[:1]
        if declared == "records" and begins == b"[":
            return "array"
        if declared == "auto" or (declared == "records" and begins != b"{"):
            refuse_by_name(path, head, text=declared == "auto")
        lines = declared in ("jsonl", "records") or (declared == "auto" and _is_json_lines(path, head))
        found = "jsonl" if lines else "text"
    if declared == "parquet" and found not in ("parquet", "arrow"):
        raise UserError(f"data.corpus.files: {path} is not Parquet", "--set data.corpus.format=auto")
    if declared in ("text", "jsonl") and found != declared:
        raise UserError(
            f"data.corpus.files: {path} is {found}, data.corpus.format is {declared}", "--set data.corpus.format=auto"
        )
    return found


def _is_json_lines(path: str, head: bytes) -> bool:
    """Return whether a file holds JSON lines by its name; raises where the contents are JSON and the name does not say so."""
    suffixes = [s for s in Path(path).suffixes if s not in (".gz", ".gzip", ".zst", ".zstd")]
    suffix = suffixes[-1] if suffixes else ""
    if suffix in (".jsonl", ".ndjson"):
        return True
    text = head.removeprefix(BOM).lstrip()
    lines = text.split(b"\n", _LINES)
    first = lines[0].startswith(b'{"') and (_is_object(lines[0]) or (len(lines) == 1 and b'":' in text and len(head) == _HEAD))
    if first and suffix == ".json":
        return True
    # Trained on as text, a model would learn braces and keys, and nobody would notice before it is asked something.
    if first or sum(map(_is_object, lines[:-1])) > len(lines) // 2:
        begins = "begins with a JSON object" if first else "has a JSON object on most lines"
        raise UserError(
            f"data.corpus.files: {path} is plain text by its name, and {begins} as JSON lines do",
            "--set data.corpus.format=jsonl to train on its texts, or format=text to train on braces and keys",
        )
    if suffix == ".json" and text.startswith((b"[", b"{")):
        raise one_array(path, text)
    return False


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(parse_json(line), dict)
    except ValueError:
        return False


def records(path: str, form: Form, columns: list[str] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number from 1, record) of a file of records: its line in JSON lines, its place in an array, its row in a table.

    `columns` are those needed, if they are there; None: all.

    Raises:
        UserError: a line is not a JSON object, or the file is damaged (names file and line).
    """
    if form == "jsonl":
        yield from _json_records(path)
    elif form == "array":
        yield from _array_records(path)
    elif form == "text":
        raise UserError(f"data.corpus.files: {path} is plain text, expected records", "give JSON lines or Parquet files")
    else:
        yield from _table_records(path, form, columns)


def half_character(text: str) -> str | None:
    """Say where a text has half of a surrogate pair, which JSON can hold and UTF-8 has no form for; None where it has none."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        return (
            f"has {half} at character offset {error.start}: half of a character which JSON writes in two, as where a text was "
            "cut inside an emoji"
        )
    return None


def _json_records(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, lines in line_parts(path):
        yield from line_records(path, number, lines)


def line_parts(path: str) -> Iterator[tuple[int, bytes]]:
    """Yield whole lines of a file, about a MiB at a time: (number of the first, bytes).

    Raises:
        UserError: the file cannot be read, or a line is too long for memory.
    """
    number, rest = 1, b""
    with open_bytes(path) as file:
        while True:
            try:
                block = file.read(_PART)
            except OSError as error:
                raise unreadable(path, error) from None
            end = block.rfind(b"\n") + 1
            if not block or end:
                lines = rest + block[:end]
                if lines:
                    yield number, lines
                number += lines.count(b"\n")
                rest = block[end:]
            else:
                rest += block
            if not block:
                return
            if len(rest) > LONGEST_LINE:
                raise _too_long(path, number)


def line_records(path: str, number: int, lines: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number, record) of some lines of a file, the first of which has this number. Raises UserError."""
    for at, line in enumerate(io.BytesIO(lines), number):
        if len(line) > LONGEST_LINE:
            raise _too_long(path, at)
        content = line.removeprefix(BOM) if at == 1 else line
        if content.isspace():
            continue
        if at == 1 and content.startswith(b"["):
            raise one_array(path, content)
        yield at, _json_record(path, at, content)


def _too_long(path: str, number: int) -> UserError:
    return UserError(f"{path}:{number}: the line is longer than {LONGEST_LINE >> 20} MiB", "write one record a line")


def _json_record(path: str, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = parse_json(line)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}:{number}: not UTF-8 ({error.reason})", to_utf8(path, sample=line)) from None
    except ValueError as error:
        raise not_json(path, number, line, error) from None
    if not isinstance(record, dict):
        raise no_object(path, number, record)
    return record


def _array_records(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the records of a file that is one JSON array, as most published conversations are; it is read whole."""
    with open_bytes(path) as file:
        content = file.read(LARGEST_ARRAY + 1)
    if len(content) > LARGEST_ARRAY:
        raise UserError(
            f"data.corpus.files: {path} is one JSON array of more than {LARGEST_ARRAY >> 30} GiB, which is read at once",
            by_jq(path, ".[]"),
        )
    try:
        listed = parse_json(content.removeprefix(BOM).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"data.corpus.files: {path} is not UTF-8 ({error.reason})", to_utf8(path)) from None
    except ValueError as error:
        raise no_array(path, error) from None
    for number, record in enumerate(listed, 1):
        if not isinstance(record, dict):
            raise UserError(f"{path}:{number}: expected a JSON object, found {type(record).__name__}", "give an array of objects")
        yield number, record


def _table_records(path: str, form: Form, columns: list[str] | None) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow

    row = 0
    try:
        for batch in _table_batches(path, form, columns):
            for record in batch.to_pylist():
                row += 1
                yield row, record
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"data.corpus.files: {path} cannot be read as {form}: {error}", "download or write it again") from None


def _table_batches(path: str, form: Form, columns: list[str] | None) -> Iterator[Any]:
    import pyarrow
    from pyarrow import parquet

    if form == "parquet":
        with parquet.ParquetFile(path, memory_map=True) as table:
            yield from table.iter_batches(_ROWS, columns=_kept(table.schema_arrow.names, columns))
        return
    with pyarrow.memory_map(path) as source:
        start = source.read(6)
        source.seek(0)
        if start == _ARROW[0]:
            table = pyarrow.ipc.open_file(source)
            batches: Iterator[Any] = (table.get_batch(i) for i in range(table.num_record_batches))
        else:
            batches = iter(pyarrow.ipc.open_stream(source))
        for batch in batches:
            names = _kept(batch.schema.names, columns)
            kept = batch if names is None else batch.select(names)
            for start_row in range(0, kept.num_rows, _ROWS):
                yield kept.slice(start_row, _ROWS)


def _kept(there: list[str], wanted: list[str] | None) -> list[str] | None:
    """Return the wanted columns that are there; None, which is all, where none is, so that an error can name them.

    'doc.text' is of the column doc.
    """
    if wanted is None:
        return None
    return [name for name in there if name in wanted or any(one.startswith(f"{name}.") for one in wanted)] or None


def dataset_files(folder: str, *, every_split: bool = False) -> list[str]:
    """Return the files of a folder that Hugging Face datasets saved, or that was downloaded from the hub, in order.

    Of a dataset with several splits `train` is taken, or where it is to be split anew all of them.

    Raises:
        UserError: the folder holds no such files, or no split named train.
    """
    root = Path(folder)
    try:
        if (root / "dataset_dict.json").is_file():
            splits = json.loads((root / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
            if every_split:
                return [file for split in splits for file in dataset_files(str(root / split))]
            if "train" not in splits:
                raise UserError(
                    f"data.corpus.files: {folder} has the splits {', '.join(splits)} and none named train",
                    f"name one: {folder}/{splits[0] if splits else 'train'}",
                )
            root = root / "train"
        if (root / "state.json").is_file():
            state = json.loads((root / "state.json").read_text(encoding="utf-8"))
            # The Arrow files then hold rows that the dataset has left out, or in another order.
            if state.get("_indices_files"):
                raise UserError(
                    f"data.corpus.files: {root} is a view of a dataset by indices",
                    "dataset.flatten_indices().save_to_disk(FOLDER)",
                )
            return [str(root / file["filename"]) for file in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"data.corpus.files: {root} is not a saved dataset: {error}", "save it again with save_to_disk") from None
    found = sorted(str(p) for p in root.rglob("*") if p.is_file() and _is_records_name(p.name))
    # The hub's convention: data/train-00000-of-00001.parquet, or a folder of that name.
    train = [path for path in found if "train" in os.path.relpath(path, root)]
    if not found:
        raise UserError(
            f"data.corpus.files: {folder} is a directory, without JSON lines, Parquet or a saved dataset in it",
            f"name its files: '{folder.rstrip('/')}/**/*.txt'",
        )
    if every_split:  # of theses, whose rejects lie beside them where they were written by `prepare`
        return [path for path in found if Path(path).name != "rejects.jsonl"]
    return train or found


def _is_records_name(name: str) -> bool:
    return name.removesuffix(".gz").removesuffix(".zst").endswith((".jsonl", ".ndjson", ".parquet"))
