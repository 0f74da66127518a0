"""The files of a corpus and the documents in them: streamed, checked to be UTF-8 text, cut where needed."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import stat
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from windtunnel.recipe import MixtureCorpus, Plugin, Recipe, StdlibCorpus, TextCorpus, UserCorpus, UserError, find_plugin

from .cache import cache_root, locked, new_folder
from .documents import DocumentBatch, batch_of
from .formats import BOM, Form, dataset_files, form_of, half_character, open_bytes, records, unreadable
from .nested import look_up
from .not_text import refuse_utf16, to_utf8, without_nulls

BLOCK = 8 << 20  # bytes read at once, and of documents in a batch: large enough that Python's part in it does not show
LARGEST_DOCUMENT = 64 << 20  # longer ones are cut, since a document is tokenized whole and takes many times its size then
_ANSWERED = ({"instruction", "output"}, {"prompt", "completion"})  # keys of a question and its answer
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


@dataclass(frozen=True)
class CorpusFile:
    """One file of a corpus.

    Attributes:
        size: bytes on disk when it was listed.
        format: what the recipe says it holds: auto, text, jsonl or parquet.
        text_key: the key of a record that holds a document.
    """

    path: str
    size: int
    format: str = "text"
    text_key: str = "text"


def corpora_of(recipe: Recipe) -> list[Any]:
    """Return the corpora of a recipe: those of a mixture's sources, or the one."""
    corpus = recipe.data.corpus
    return [source.corpus for source in corpus.sources] if isinstance(corpus, MixtureCorpus) else [corpus]


def corpus_files(corpus: TextCorpus | StdlibCorpus | UserCorpus) -> list[CorpusFile]:
    """Return the corpus's files, sorted by path, each once, empty ones found by a glob left out.

    The documents of a user's corpus are made on the first call, and kept in the cache as JSON lines.

    Raises:
        UserError: a file or pattern matches nothing, is a directory, is empty or cannot be read; a package's corpus fails.
    """
    if isinstance(corpus, UserCorpus):
        return [made_documents(corpus)]
    if isinstance(corpus, StdlibCorpus):
        return _stdlib_files(corpus)
    return [replace(file, format=corpus.format, text_key=corpus.text_key) for file in listed_files(corpus.files)]


def listed_files(patterns: Sequence[str], *, every_split: bool = False) -> list[CorpusFile]:
    """Return the files that paths, globs and dataset folders stand for; see `corpus_files` and `dataset_files`."""
    found: dict[str, CorpusFile] = {}
    for pattern in patterns:
        expanded = os.path.expanduser(pattern)
        if os.path.isdir(expanded):
            matches = [_stat(path) for path in dataset_files(expanded, every_split=every_split)]
        elif os.path.lexists(expanded):  # a name may hold brackets and need not be a pattern
            file = _stat(expanded)
            if not file.size:
                raise UserError(f"data.corpus.files: {pattern} is empty", "remove it from the recipe or put text into it")
            matches = [file]
        else:
            matches = [_stat(p) for p in sorted(glob.glob(expanded, recursive=True)) if os.path.isfile(p)]
            if not matches:
                raise UserError(
                    f"data.corpus.files: {pattern or repr(pattern)} does not exist or matches no file (looked in {os.getcwd()})",
                    "give an existing file or a glob such as 'books/**/*.txt'",
                )
        for file in matches:
            if file.size:
                # Patterns may overlap, and links lead to one file: text must not be trained on twice.
                found.setdefault(os.path.realpath(file.path), file)
    if not found:
        raise UserError(f"data.corpus.files: every file of {', '.join(patterns)} is empty", "give files with text in them")
    # The order of documents decides the tokens, and file systems list in any order.
    return sorted(found.values(), key=lambda f: f.path)


def made_documents(corpus: UserCorpus) -> CorpusFile:
    """Return the file of JSON lines that holds a user's corpus; made now where the cache lacks it.

    It is made again when the corpus's keys, its package's version or its module changes.

    Raises:
        UserError: the package's code fails, or yields no text; names package and entry point.
    """
    plugin = find_plugin("corpora", corpus.kind)
    if plugin is None:
        raise UserError(f"no installed package offers corpus {corpus.kind}", "install the package that the recipe needs")
    definition = json.dumps([plugin.identity(), corpus.model_dump(mode="json")], sort_keys=True)
    root = cache_root()
    folder = root / f"{corpus.kind}-documents-{hashlib.sha256(definition.encode()).hexdigest()[:16]}"
    file = folder / "documents.jsonl"
    with locked(root / f"{folder.name}.lock", lambda: None) as alone:
        if not file.exists():
            with new_folder(folder, alone) as temporary:
                _write_documents(corpus, plugin, temporary / file.name)
    return CorpusFile(str(file), file.stat().st_size, format="jsonl")


def _write_documents(corpus: UserCorpus, plugin: Plugin, file: Path) -> None:
    number = 0
    with open(file, "w", encoding="utf-8") as lines:
        documents = _documents(corpus, plugin)
        for number, text in enumerate(documents, 1):
            if not isinstance(text, str):
                raise plugin.broken(f"yields a {type(text).__name__} as document {number:,}, expected text")
            lines.write(json.dumps({"text": text}) + "\n")
        lines.flush()
        os.fsync(lines.fileno())
    if number == 0:
        raise plugin.broken(f"yields no documents for {corpus.model_dump(mode='json')}")


def _documents(corpus: UserCorpus, plugin: Plugin) -> Iterator[object]:
    """Yield the documents; whatever the package's code raises, but for a full disk here, becomes a UserError that names it."""
    number = 0
    try:
        for number, text in enumerate(corpus.documents(), 1):  # noqa: B007 - the message tells how far it came
            yield text
    except (UserError, GeneratorExit):
        raise
    except Exception as error:
        raise plugin.failed(f"fails after {number:,} documents", error) from None


def _stdlib_files(corpus: StdlibCorpus) -> list[CorpusFile]:
    root = Path(sysconfig.get_path("stdlib"))
    wanted, total, files = round(corpus.megabytes * 1e6), 0, []
    for path in sorted(_modules(root), key=lambda path: path.parts):
        if total >= wanted:
            break
        if path.is_file() and (size := path.stat().st_size):
            files.append(CorpusFile(str(path), size))
            total += size
    if not files:
        raise UserError(f"the stdlib corpus: no Python files under {root}", "use a Python installed as files, or a text corpus")
    return files


def _modules(root: Path) -> Iterator[Path]:
    """Python files of the library itself: installed packages, which lie within it, are tens of thousands more."""
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _NOT_LIBRARY]
        yield from (Path(folder, name) for name in names if name.endswith(".py") and name not in _NOT_LIBRARY)


def _stat(path: str) -> CorpusFile:
    try:
        if stat.S_ISFIFO(os.stat(path).st_mode):  # opening one may wait for ever
            raise UserError(f"data.corpus.files: {path} is a pipe; a corpus is read more than once", "write it to a file first")
        with open(path, "rb") as file:
            return CorpusFile(path, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise unreadable(path, error) from None


def read_documents(file: CorpusFile, separator: str | None, longest: int = LARGEST_DOCUMENT) -> Iterator[DocumentBatch]:
    """Yield the documents of a file in batches of about 8 MB; those longer than `longest` bytes are cut into pieces.

    A piece ends at the last blank line in its second half, else at a line's end, a space, or any character.
    Empty documents are left out; a byte order mark at the start is dropped.

    Raises:
        UserError: the file cannot be read, holds NUL bytes, is not UTF-8 (names the byte offset), or has a record
            without text (names the line).
    """
    form = form_of(file.path, file.format)
    if form == "text":
        yield from _read_text(file.path, separator, longest)
    elif separator is not None:
        raise UserError(
            f"data.corpus.separator divides plain text, and {file.path} is {form}: each record is a document",
            f"--set data.corpus.separator=null --set data.corpus.format={'jsonl' if form == 'jsonl' else 'parquet'}, or "
            "data.corpus.format=text to train on braces and keys",
        )
    else:
        yield from _read_records(file, form, longest)


def _read_records(file: CorpusFile, form: Form, longest: int) -> Iterator[DocumentBatch]:
    documents: list[bytes] = []
    numbers: list[int] = []
    size = 0
    for number, record in records(file.path, form, [file.text_key]):
        text = look_up(record, file.text_key)
        if not isinstance(text, str | bytes):
            raise _without_text(file, form, number, record)
        for piece in _pieces(_utf8(file, number, text), longest):
            if piece:
                documents.append(piece)
                numbers.append(number)
                size += len(piece)
        if size >= BLOCK:
            yield batch_of(file.path, documents, numbers, records=True)
            documents, numbers, size = [], [], 0
    if documents:
        yield batch_of(file.path, documents, numbers, records=True)


def _names_of(record: dict[str, Any], key: str) -> list[str]:
    """Return the names that lead to what `look_up` takes, the outermost first: one where the record has the key as it is."""
    if key in record or "." not in key:
        return [key]
    outer, _, inner = key.partition(".")
    below = record.get(outer)
    return [outer, *(_names_of(below, inner) if isinstance(below, dict) else inner.split("."))]


def _utf8(file: CorpusFile, number: int, text: str | bytes) -> bytes:
    """Return a record's text as UTF-8; some writers of Parquet mark none of their texts as such."""
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{file.path}:{number}: {file.text_key!r} is bytes that are not UTF-8 ({error.reason} at byte {error.start})",
                "mend the record or leave it out",
            ) from None
    if half := half_character(text):
        raise UserError(f"{file.path}:{number}: {file.text_key!r} {half}", "mend the record or leave it out")
    return text.encode("utf-8")


def _without_text(file: CorpusFile, form: Form, number: int, record: dict[str, Any]) -> UserError:
    where = f"{file.path}:{number}"
    names = _names_of(record, file.text_key)
    if names[0] in record:
        found, depth = record[names[0]], 1
        while depth < len(names) and isinstance(found, dict):
            found, depth = found.get(names[depth]), depth + 1
        what = "null" if found is None else type(found).__name__
        fix = "mend the record or leave it out"
        if found is None and form in ("jsonl", "parquet"):
            fix = f"{fix}: {without_nulls(file.path, names, table=form == 'parquet')}"
        expected = "text" if depth == len(names) else f"an object with {names[depth]!r}"
        return UserError(f"{where}: {'.'.join(names[:depth])!r} is {what}, expected {expected}", fix)
    if {"messages", "conversations"} & set(record) or any(pair <= set(record) for pair in _ANSWERED):
        return UserError(f"{where}: this is a conversation, not a document", "--set data.corpus.kind=conversations")
    texts = [key for key, value in record.items() if isinstance(value, str)]
    below = [f"{key}.{name}" for key, value in record.items() if isinstance(value, dict) for name in value if name == "text"]
    texts = texts or below
    fix = f"--set data.corpus.text_key={texts[0]}" if texts else "name the key that holds the text with data.corpus.text_key"
    if number > 1:  # the records before have it
        fix = "mend the record or leave it out"
    has = ", ".join(map(repr, sorted(record))) or "none"
    return UserError(f"{where}: no key {file.text_key!r} with the document's text; it has {has}", fix)


def _read_text(path: str, separator: str | None, longest: int) -> Iterator[DocumentBatch]:
    mark = separator.encode() if separator else b""
    rest, at = b"", 0
    for block in _blocks(path):
        if at == 0 and not rest and block.startswith(BOM):
            block, at = block[len(BOM) :], len(BOM)
        *whole, rest = (rest + block).split(mark) if mark else [rest + block]
        documents, offsets = [], []
        for document in whole:
            for piece in _pieces(document, longest):
                documents.append(piece)
                offsets.append(at)
                at += len(piece)
            at += len(mark)
        while len(rest) > longest:
            cut = _cut(rest, longest)
            documents.append(rest[:cut])
            offsets.append(at)
            rest, at = rest[cut:], at + cut
        yield from _checked(path, documents, offsets)
    yield from _checked(path, [rest], [at])


def _blocks(path: str) -> Iterator[bytes]:
    try:
        with open_bytes(path) as file:
            while block := file.read(BLOCK):
                yield block
    except OSError as error:
        raise unreadable(path, error) from None


def _pieces(document: bytes, longest: int) -> Iterator[bytes]:
    while len(document) > longest:
        cut = _cut(document, longest)
        yield document[:cut]
        document = document[cut:]
    yield document


def _cut(text: bytes, longest: int) -> int:
    """Return where to cut a document that is longer than `longest`: at most there, and never inside a character."""
    for mark in (b"\n\n", b"\n", b" "):
        # Not in the first half, or a text with few blank lines would become many short pieces.
        found = text.rfind(mark, longest // 2, longest)
        if found >= 0:
            return found + len(mark)
    cut = longest
    # Bytes 10xxxxxx go on with a character, which has at most four in UTF-8.
    while cut > longest - 4 and text[cut] & 0xC0 == 0x80:
        cut -= 1
    return cut if cut > 0 else longest


def _checked(path: str, documents: list[bytes], offsets: list[int]) -> Iterator[DocumentBatch]:
    kept = [(d, o) for d, o in zip(documents, offsets, strict=True) if d] if b"" in documents else None
    if kept is not None:
        documents, offsets = [d for d, _ in kept], [o for _, o in kept]
    if not documents:
        return
    batch = batch_of(path, documents, offsets)
    # Checked as a whole: a decode call for each document takes several times as long.
    text = batch.text.tobytes()
    nul = text.find(b"\0")
    if nul >= 0:
        refuse_utf16(path, text)
        where = _file_offset(batch, nul)
        raise UserError(f"data.corpus.files: {path} is binary: NUL byte at byte offset {where}", "give plain UTF-8 text files")
    if not text.isascii():
        try:
            text.decode("utf-8")
        except UnicodeDecodeError as error:
            where = _file_offset(batch, error.start)
            cut = error.end == len(text) and error.reason == "unexpected end of data"
            raise UserError(
                f"data.corpus.files: {path} is not UTF-8: byte 0x{text[error.start]:02x} at byte offset {where} ({error.reason})",
                ("if it was cut off inside a character, download it again; otherwise " if cut else "")
                + to_utf8(path, sample=text[error.start :]),
            ) from None
    yield batch


def _file_offset(batch: DocumentBatch, position: int) -> int:
    assert batch.offsets is not None
    index = int(batch.starts.searchsorted(position, side="right")) - 1
    return int(batch.offsets[index]) + position - int(batch.starts[index])
