"""How bytes pass between the judge and a candidate's child: two memory files of fixed size, and nothing that is executed.

A request file (sealed, read-only): length, JSON, buffers. A reply file: 64 bytes that name the phase the child is in, length,
a mark written last, JSON, buffers; or the buffers behind a gap as long as the longest JSON, where they were written early. There
is no pipe that could fill up or be closed, nothing is unpickled, and every length is checked by the side that does not trust it.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# At the file's beginning and of fixed length: it can be read while the child runs, and after any crash.
PHASE_BYTES = 64
# Written last, so that a reply which was cut off is none.
MARK = b"windtunn"
HEAD = struct.Struct("<Q8s")
# Parsed by the judge, where a byte may become twenty; what is large belongs into buffers.
MOST_JSON = 4 << 20
# Each is an entry of a list that the judge makes.
MOST_BUFFERS = 1 << 16
REPLY_FD, REQUEST_FD = 3, 4
# linux/fcntl.h
ADD_SEALS, SEAL_SHRINK, SEAL_GROW, SEAL_WRITE = 1033, 2, 4, 8

EARLY_AT = PHASE_BYTES + HEAD.size + MOST_JSON

Buffers = Sequence[bytes | bytearray | memoryview]
Spans = tuple[tuple[int, int], ...]


class Early:
    """In the child: buffers that are put into the reply while the entry still runs, so that none has to be held until its end.

    An entry returns it in place of its buffers.
    """

    def __init__(self, fd: int = REPLY_FD) -> None:
        self.fd, self.at = fd, EARLY_AT
        self.sizes: list[int] = []

    def add(self, pieces: Iterable[bytes | bytearray | memoryview]) -> int:
        """Write one more, piece by piece; its number.

        Raises:
            OverflowError: the reply's file is full.
        """
        # The file's own length is the limit: it was sealed, and cannot grow.
        start, most = self.at, os.fstat(self.fd).st_size
        for piece in pieces:
            if self.at + memoryview(piece).nbytes > most:
                raise OverflowError(f"the reply has more than the {most:,} bytes that it may have")
            self.at = _write_at(self.fd, piece, self.at)
        self.sizes.append(self.at - start)
        return len(self.sizes) - 1


class Kept:
    """The judge's side: a reply's buffers, left in the file that the child wrote. spans: first byte and size of each.

    They can be handed to another child as one of a job's files, without a copy. Whoever has it closes it.
    """

    def __init__(self, fd: int, spans: Spans) -> None:
        self.fd, self.spans = fd, spans

    def close(self) -> None:
        """Give the memory back."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def __del__(self) -> None:
        self.close()


class BadReply(Exception):
    """The child's reply is not what the format allows; its text says how."""


def memory_file(name: str, size: int) -> int:
    """Return a file descriptor of an anonymous file that can neither grow nor shrink; untouched pages cost nothing."""
    import fcntl

    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, ADD_SEALS, SEAL_GROW | SEAL_SHRINK)
    return fd


def write_request(message: Mapping[str, Any], buffers: Buffers) -> int:
    """Return a sealed file descriptor that holds a request; the caller closes it."""
    import fcntl

    # Under a key that no message has.
    body = json.dumps({**message, "": [memoryview(b).nbytes for b in buffers]}).encode()
    fd = os.memfd_create("request", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    _write_all(fd, HEAD.pack(len(body), MARK))
    _write_all(fd, body)
    for buffer in buffers:
        _write_all(fd, memoryview(buffer).cast("B"))
    # Sealed, so that no child can change what the next one reads.
    fcntl.fcntl(fd, ADD_SEALS, SEAL_GROW | SEAL_SHRINK | SEAL_WRITE)
    return fd


def read_request(fd: int = REQUEST_FD) -> tuple[dict[str, Any], list[memoryview]]:
    """Read the request in the child: the message and its buffers, writable copies on write."""
    view = memoryview(mmap.mmap(fd, os.fstat(fd).st_size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE))
    length, _ = HEAD.unpack_from(view)
    at = HEAD.size + length
    message = json.loads(bytes(view[HEAD.size : at]))
    buffers = []
    for size in message.pop(""):
        buffers.append(view[at : at + size])
        at += size
    return message, buffers


def note(phase: str, fd: int = REPLY_FD) -> None:
    """Say in the child what is being done; it is known even after a crash."""
    os.pwrite(fd, phase.encode()[:PHASE_BYTES].ljust(PHASE_BYTES, b"\0"), 0)


def write_reply(message: Mapping[str, Any], buffers: Buffers | Early, fd: int = REPLY_FD) -> None:
    """Write the reply in the child. buffers: what is to be written, or what was.

    Raises:
        OverflowError: it is longer than the file, or its message than a judge parses.
        TypeError, ValueError: the message is not JSON.
    """
    early = isinstance(buffers, Early)
    sizes = buffers.sizes if isinstance(buffers, Early) else [memoryview(b).nbytes for b in buffers]
    body = json.dumps({**message, "": sizes} | ({"@": EARLY_AT} if early else {})).encode()
    if len(body) > MOST_JSON:
        raise OverflowError(f"the reply's message has {len(body):,} bytes, at most {MOST_JSON:,}")
    start = PHASE_BYTES + HEAD.size
    size, most = start + len(body) + (0 if early else sum(sizes)), os.fstat(fd).st_size
    if size > most:
        raise OverflowError(f"the reply has {size:,} bytes, at most {most:,}")
    at = _write_at(fd, body, start)
    for part in () if isinstance(buffers, Early) else buffers:
        at = _write_at(fd, part, at)
    os.pwrite(fd, HEAD.pack(len(body), MARK), PHASE_BYTES)


def ready(fd: int, seconds: float, event: int = select.POLLIN) -> bool:
    """Wait until a file can be read (or written), or its other end is closed; select() refuses descriptors above 1,023."""
    poll = select.poll()
    poll.register(fd, event)
    return bool(poll.poll(seconds * 1000))


def read_phase(fd: int) -> str:
    """Return the phase that the child was in: untrusted text of at most 64 bytes."""
    return os.pread(fd, PHASE_BYTES, 0).rstrip(b"\0").decode("utf-8", "replace")


def read_reply(fd: int) -> tuple[dict[str, Any], tuple[bytes, ...]] | None:
    """Return a child's message and buffers, or None when there is no reply. For the judge, after the child is dead.

    Raises:
        BadReply: something was written that is not a reply.
    """
    found = read_spans(fd)
    return None if found is None else (found[0], tuple(_read(fd, size, at) for at, size in found[1]))


def read_spans(fd: int) -> tuple[dict[str, Any], Spans] | None:
    """Return a child's message, and where its buffers lie in the file: first byte and size of each; None when there is no reply.

    Raises:
        BadReply: something was written that is not a reply.
    """
    length, mark = HEAD.unpack(os.pread(fd, HEAD.size, PHASE_BYTES))
    if mark != MARK:
        return None
    size, at = os.fstat(fd).st_size, PHASE_BYTES + HEAD.size
    # From here on nothing is believed: the file was written by whatever ran in the child.
    if length > min(size - at, MOST_JSON):
        raise BadReply(f"a message of {length:,} bytes is announced")
    try:
        message = json.loads(os.pread(fd, length, at))
    except (ValueError, RecursionError) as error:
        raise BadReply(f"not JSON: {type(error).__name__}") from None
    if not isinstance(message, dict):
        raise BadReply("the message is not a JSON object")
    start, sizes = message.pop("@", at + length), message.pop("", None)
    if start not in (at + length, EARLY_AT) or not isinstance(sizes, list) or len(sizes) > MOST_BUFFERS:
        raise BadReply("the buffers' sizes are not told")
    # Not isinstance: true is a number to it.
    if not all(type(n) is int and n >= 0 for n in sizes) or sum(sizes) > size - start:
        raise BadReply("the buffers' sizes do not fit the reply")
    spans = []
    for n in sizes:
        spans.append((int(start), n))
        start += n
    return message, tuple(spans)


def _read(fd: int, size: int, at: int) -> bytes:
    parts = []
    while size:
        part = os.pread(fd, size, at)
        parts.append(part)
        size, at = size - len(part), at + len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _write_all(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _write_at(fd: int, data: bytes | bytearray | memoryview, at: int) -> int:
    """Write all of it there; where it ended."""
    view = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written
    return at
