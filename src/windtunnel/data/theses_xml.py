"""Theses in XML, read as a stream: a record is held in memory, never a file; what could be hostile is refused.

`<stock-theses ticker="ABC">` holds a `<thesis>` each; reasoning, support, action and as-of-date (or as_of_date, or an
attribute) are its children, and every other child is an indicator. Expat reads, as in Python's own library. A file
with a DOCTYPE is refused before anything in it is looked at: without one there are no entities, so none can grow
(billion laughs) or fetch a file or an address (XXE); this is what the package defusedxml does with forbid_dtd.

A large file is read in parts, by several processes. A part begins at a `<thesis` and is well-formed between the tags of the
document element; so if all parts are, one after the other, each begins where no element but that one is open and no tag or
comment, and together they say what the whole file says. A file with a part that is not is read from the beginning, as one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from xml.parsers import expat

from windtunnel.recipe import UserError

from .formats import open_bytes
from .theses import Record

BLOCK = 1 << 18  # bytes fed at once
LONGEST_TOKEN = 16 << 20  # bytes of one tag or comment, which Expat holds as a whole
LONGEST_TEXT = 2_000_000  # characters kept of one text: more than any thesis may have, so that it is rejected for its length
DEEPEST = 64  # elements in one another: a thesis has three, and hostile files thousands
MOST_CHILDREN = 1_000  # indicators kept of one thesis
PART = 1 << 20  # bytes that a process reads at once: some thousand theses
_LONGEST_HEAD = 1 << 20  # bytes before the first thesis
_ROOTS = ("stock-theses", "theses")
_FIELDS = ("ticker", "as_of_date", "reasoning", "support", "action")
# Markup that stands within a word; other elements part words, as a paragraph does.
_INLINE = frozenset(("a", "b", "code", "em", "i", "q", "span", "strong", "sub", "sup", "u"))
_GROUP = ("indicators", "indicator")
_GIVEN = ("ticker", "as_of_date", "action")
_THESIS = re.compile(rb"<thesis[\s/>]")
_ENCODING = re.compile(rb"\s*(?:\xef\xbb\xbf)?<\?xml[^>]*?\sencoding\s*=\s*[\"']([^\"']*)")


class _Hostile(Exception):
    """What no file of theses has; (what, fix)."""


class Undividable(Exception):
    """A file whose theses cannot be read in parts, for whatever reason; read as a whole it may be right."""


def is_xml(path: str, head: bytes) -> bool:
    """Return whether a file is XML, by its first character in UTF-8 or UTF-16, or by its name."""
    name = path.lower().removesuffix(".gz").removesuffix(".zst")
    start = head.lstrip(b"\xef\xbb\xbf\xff\xfe\xfe\xff\x00 \t\r\n")
    return name.endswith(".xml") or start.startswith((b"<", b"\x00<"))


def xml_records(path: str, report: Callable[[int], None]) -> Iterator[tuple[int, Record]]:
    """Yield (line, record) of every thesis in a file, also a compressed one; `report` gets the bytes read so far, decompressed.

    Raises:
        UserError: the file is not XML, is damaged or truncated, has a DOCTYPE, or is written to exhaust memory.
    """
    reader = _Reader()
    parser = reader.parser
    fed = 0
    with open_bytes(path) as file:
        while True:
            block = file.read(BLOCK)
            try:
                parser.Parse(block, not block)
            except _Hostile as error:
                what, fix = error.args
                raise UserError(f"{path}:{parser.CurrentLineNumber}: {what}", fix) from None
            except (expat.ExpatError, ValueError, LookupError) as error:
                raise _malformed(path, parser, error) from None
            yield from reader.found
            reader.found.clear()
            if not block:
                return
            fed += len(block)
            # Expat keeps what it has been fed until a tag ends.
            if fed - max(0, parser.CurrentByteIndex) > LONGEST_TOKEN:
                what = f"{path}:{parser.CurrentLineNumber}: one tag or comment is longer than {LONGEST_TOKEN >> 20} MiB"
                raise UserError(what, "look at that line: no thesis has such a tag")
            report(fed)


def xml_parts(path: str, report: Callable[[int], None]) -> Iterator[XmlPart]:
    """Yield the theses of a file in parts that can be read apart from one another; arguments as of `xml_records`.

    Raises:
        Undividable: read it with `xml_records`, which says what is wrong, if anything is.
        UserError: the file cannot be opened or decompressed.
    """
    with open_bytes(path) as file:
        content = b""
        while not (first := _THESIS.search(content)):
            block = file.read(BLOCK)
            if not block or len(content) > _LONGEST_HEAD:
                raise Undividable
            content += block
        root, given = _root_of(content[: first.start()])
        line, fed = 1 + _lines(content[: first.start()]), len(content)
        content = content[first.start() :]
        while block := file.read(PART):
            fed += len(block)
            report(fed)
            content += block
            cut = _last_thesis(content)
            if cut:
                yield XmlPart(path, line, content[:cut], root, given)
                line, content = line + _lines(content[:cut]), content[cut:]
            elif len(content) > LONGEST_TOKEN:
                raise Undividable
        yield XmlPart(path, line, content, root, given, last=True)


def _root_of(head: bytes) -> tuple[str, dict[str, str]]:
    """Return name and attributes of the document element that is open behind a file's head. Raises Undividable."""
    encoding = _ENCODING.match(head)
    # In UTF-16 a tag does not begin with the bytes that are looked for.
    if encoding and encoding[1].lower() != b"utf-8":
        raise Undividable
    reader = _Reader()
    try:
        reader.parser.Parse(head, False)
        reader.parser.Parse(f"</{reader.root_name}>".encode(), True)
    except (_Hostile, expat.ExpatError, ValueError, LookupError):
        raise Undividable from None
    if reader.found:
        raise Undividable
    return reader.root_name, reader.root


def _last_thesis(content: bytes) -> int:
    """Where the last thesis begins; 0 where no other begins than the first."""
    at = len(content) - 1
    while (at := content.rfind(b"<thesis", 0, at)) > 0:
        if _THESIS.match(content, at):
            return at
    return 0


def _lines(content: bytes) -> int:
    """Line ends, as Expat counts them."""
    count = content.count(b"\n")
    return count + content.count(b"\r") - content.count(b"\r\n") if b"\r" in content else count


@dataclass(frozen=True)
class XmlPart:
    """Some theses of a file, one behind the other.

    Attributes:
        line: on which it begins. root, given: name and attributes of the document element.
        last: it ends as the file does, behind the document element.
    """

    path: str
    line: int
    content: bytes
    root: str
    given: dict[str, str]
    last: bool = False

    def records(self) -> Iterator[tuple[str, Record]]:
        """Yield (source, record) of every thesis. Raises Undividable."""
        reader = _Reader()
        try:
            reader.parser.Parse(f"<{self.root}>".encode(), False)
            reader.root = self.given
            reader.parser.Parse(self.content, False)
            # The last part brings the end of the document element itself.
            reader.parser.Parse(b"" if self.last else f"</{self.root}>".encode(), True)
        except (_Hostile, expat.ExpatError, ValueError, LookupError):
            raise Undividable from None
        for line, record in reader.found:
            yield f"{self.path}:{self.line + line - 1}", record


def _malformed(path: str, parser: Any, error: Exception) -> UserError:
    said = expat.ErrorString(error.code) if isinstance(error, expat.ExpatError) else str(error)
    where = f"{path}:{parser.ErrorLineNumber}"
    if "encoding" in said:
        fix = f"convert it: iconv -f ENCODING -t utf-8 {path}, and name utf-8 in its first line"
        return UserError(f"{where}: its encoding cannot be read: {said}", fix)
    fix = f"mend it; this shows the place: xmllint --noout {path}"
    if "invalid token" in said:
        fix += "; text that is not UTF-8 needs its encoding named in the first line"
    return UserError(f"{where}: not well-formed XML, column {parser.ErrorColumnNumber + 1}: {said}", fix)


@lru_cache(1024)
def _name(name: str) -> str:
    """Return a name without its namespace's prefix, in small letters and with underscores."""
    return name.rpartition(":")[2].lower().replace("-", "_")


def _keep(record: Record, path: Sequence[str], text: str, told: str | None) -> None:
    """Put the text of an element that has no others in it where it belongs, or the value that its attributes told."""
    name = path[-1]
    if len(path) == 1 and name in _FIELDS:
        # Given twice with two values: both are kept, so that it can be refused.
        before = record.get(name)
        record[name] = text if before in (None, text) else (before, text)
        return
    value = text or told
    indicators = record["indicators"]
    if value and len(indicators) < MOST_CHILDREN:
        key = ".".join(part for part in path if part not in _GROUP) or name if len(path) > 1 else name
        number = 1
        while key in indicators:
            number += 1
            key = f"{key.rpartition('#')[0] or key}#{number}"
        indicators[key] = value


class _Reader:
    """Makes records of what Expat reports.

    Attributes:
        found: records that are complete.
        root_name, root: name and attributes of the document element.
    """

    def __init__(self) -> None:
        self.found: list[tuple[int, Record]] = []
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True  # else every line of a text is a call
        self.parser.buffer_size = 1 << 16
        self.parser.StartDoctypeDeclHandler = self._doctype
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self._depth = 0
        self.root_name = ""
        self.root: dict[str, str] = {}
        self._inside = 0  # the depth of the thesis that is open; 0: none
        self._line = 0
        self._record: Record = {}
        self._path: list[str] = []  # names of the open elements within a thesis, but of those within a field
        self._field = 0  # the depth of the field or indicator whose text is collected
        self._pieces: list[str] = []
        self._size = 0
        self._value: str | None = None

    def _doctype(self, *declared: Any) -> None:
        what = "a DOCTYPE can define entities that grow without end or read other files, so none is taken"
        raise _Hostile(what, "remove the <!DOCTYPE ...> and write out the entities that it defines")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._field and self._path and self._path[-1] in _FIELDS:  # markup within a text
            if self._depth > DEEPEST:
                self._too_deep()
            if name not in _INLINE:
                self._text(" ")
            return
        plain = _name(name)
        if self._inside:
            self._start_child(plain, attributes)
        elif plain == "thesis":
            self._inside, self._line = self._depth, self.parser.CurrentLineNumber
            given = {_name(key): value for key, value in attributes.items()}
            self._record = {"indicators": {}} | {key: given[key] for key in _GIVEN if key in given}
        elif self._depth == 1:
            if plain not in [_name(root) for root in _ROOTS]:
                raise _Hostile(f"the document is <{name[:60]}>, expected <{_ROOTS[0]}>", "give a file of theses")
            self.root_name, self.root = name, {_name(key): value for key, value in attributes.items()}
        elif self._depth > DEEPEST:
            self._too_deep()

    def _start_child(self, plain: str, attributes: dict[str, str]) -> None:
        if self._depth > DEEPEST:
            self._too_deep()
        if plain in ("indicator", "item"):
            plain = attributes.get("name", attributes.get("key", plain))
        self._value = attributes.get("value")
        self._path.append(plain)
        self._field, self._pieces, self._size = self._depth, [], 0

    def _too_deep(self) -> None:
        raise _Hostile(f"elements lie more than {DEEPEST} deep in one another", "give a file of theses")

    def _text(self, text: str) -> None:
        if self._field and self._size < LONGEST_TEXT:
            self._pieces.append(text[: LONGEST_TEXT - self._size])
            self._size += len(text)

    def _end(self, name: str) -> None:
        depth, self._depth = self._depth, self._depth - 1
        if not self._inside:
            return
        if depth == self._inside:
            self._finish()
        elif self._field and depth > self._field:
            if name not in _INLINE:
                self._text(" ")
        else:
            if depth == self._field:
                _keep(self._record, self._path, "".join(self._pieces).strip(), self._value)
                self._field = 0
            self._path.pop()

    def _finish(self) -> None:
        # What the document element says holds for theses that say nothing.
        if "ticker" not in self._record and "ticker" in self.root:
            self._record["ticker"] = self.root["ticker"]
        self.found.append((self._line, self._record))
        self._inside, self._field = 0, 0
        self._path.clear()
