"""How bytes pass between the judge and a candidate's child: two memory files of fixed size, and nothing that is executed.

A request file (sealed, read-only): length, JSON, buffers. A reply file: 64 bytes that name the phase the child is in, length,
a mark written last, JSON, buffers. There is no pipe that could fill up or be closed, nothing is unpickled, and every length is
checked by the side that does not trust it.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any

PHASE_BYTES = 64
MARK = b"windtunn"
HEAD = struct.Struct("<Q8s")
# Parsed by the judge, where a byte may become twenty; what is large belongs into buffers.
MOST_JSON = 4 << 20
REPLY_FD, REQUEST_FD = 3, 4
# linux/fcntl.h
ADD_SEALS, SEAL_SHRINK, SEAL_GROW, SEAL_WRITE = 1033, 2, 4, 8

Buffers = Sequence[bytes | bytearray | memoryview]


class BadReply(Exception):
    """The child's reply is not what the format allows; its text says how."""


def memory_file(name: str, size: int) -> int:
    """A file descriptor of an anonymous file that can neither grow nor shrink; untouched pages cost nothing."""
    import fcntl

    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, ADD_SEALS, SEAL_GROW | SEAL_SHRINK)
    return fd


def write_request(message: Mapping[str, Any], buffers: Buffers) -> int:
    """A sealed file descriptor that holds a request; the caller closes it."""
    import fcntl

    body = json.dumps({**message, "": [memoryview(b).nbytes for b in buffers]}).encode()
    fd = os.memfd_create("request", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    _write_all(fd, HEAD.pack(len(body), MARK))
    _write_all(fd, body)
    for buffer in buffers:
        _write_all(fd, memoryview(buffer).cast("B"))
    fcntl.fcntl(fd, ADD_SEALS, SEAL_GROW | SEAL_SHRINK | SEAL_WRITE)
    return fd


def read_request(fd: int = REQUEST_FD) -> tuple[dict[str, Any], list[memoryview]]:
    """In the child: the message and its buffers, writable copies on write."""
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
    """In the child: say what is being done; it is known even after a crash."""
    os.pwrite(fd, phase.encode()[:PHASE_BYTES].ljust(PHASE_BYTES, b"\0"), 0)


def write_reply(message: Mapping[str, Any], buffers: Buffers, fd: int = REPLY_FD) -> None:
    """In the child: the reply.

    Raises:
        OverflowError: it is longer than the file, or its message than a judge parses.
        TypeError, ValueError: the message is not JSON.
    """
    body = json.dumps({**message, "": [memoryview(b).nbytes for b in buffers]}).encode()
    if len(body) > MOST_JSON:
        raise OverflowError(f"the reply's message has {len(body):,} bytes, at most {MOST_JSON:,}")
    start = PHASE_BYTES + HEAD.size
    size, most = start + len(body) + sum(memoryview(b).nbytes for b in buffers), os.fstat(fd).st_size
    if size > most:
        raise OverflowError(f"the reply has {size:,} bytes, at most {most:,}")
    at = start
    for part in (body, *buffers):
        view = memoryview(part).cast("B")
        while view:
            written = os.pwrite(fd, view, at)
            view, at = view[written:], at + written
    os.pwrite(fd, HEAD.pack(len(body), MARK), PHASE_BYTES)


def read_phase(fd: int) -> str:
    """The phase that the child was in: untrusted text of at most 64 bytes."""
    return os.pread(fd, PHASE_BYTES, 0).rstrip(b"\0").decode("utf-8", "replace")


def read_reply(fd: int) -> tuple[dict[str, Any], tuple[bytes, ...]] | None:
    """The judge's side, after the child is dead: message and buffers, or None when there is no reply.

    Raises:
        BadReply: something was written that is not a reply.
    """
    length, mark = HEAD.unpack(os.pread(fd, HEAD.size, PHASE_BYTES))
    if mark != MARK:
        return None
    size, at = os.fstat(fd).st_size, PHASE_BYTES + HEAD.size
    if length > min(size - at, MOST_JSON):
        raise BadReply(f"a message of {length:,} bytes is announced")
    try:
        message = json.loads(os.pread(fd, length, at))
    except (ValueError, RecursionError) as error:
        raise BadReply(f"not JSON: {type(error).__name__}") from None
    if not isinstance(message, dict):
        raise BadReply("the message is not a JSON object")
    sizes = message.pop("", None)
    if not isinstance(sizes, list) or not all(type(n) is int and n >= 0 for n in sizes) or sum(sizes) > size - at - length:
        raise BadReply("the buffers' sizes do not fit the reply")
    at += length
    buffers = []
    for n in sizes:
        buffers.append(_read(fd, n, at))
        at += n
    return message, tuple(buffers)


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
