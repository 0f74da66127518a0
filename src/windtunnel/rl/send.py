"""The learner's side of weights that go to engines without a disk: a bucket is made when the last but one has been taken."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from windtunnel.train import nothing

from .errors import EngineFailed
from .transfer import (
    Invitation,
    Packed,
    Way,
    broadcast,
    bucket_key,
    connected,
    digest,
    joined_key,
    padded,
    shared_buffer,
)

BUCKET_BYTES = 1 << 30
"""Of a bucket at most, unless one tensor is larger."""
POLL_SECONDS = 2e-4


@dataclass
class _Progress:
    """Of a version that is being sent: buckets so far, a digest of their tensors' names, and what failed first."""

    number: int = 0
    names: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=16))
    failure: EngineFailed | None = None

    def add(self, bucket: dict[str, Tensor]) -> None:
        """Count a bucket."""
        self.number += 1
        self.names.update("\n".join(bucket).encode() + b"\n")


class Held:
    """The version that was sent last, in this host's memory: for an engine that starts again while learners are elsewhere."""

    def __init__(self) -> None:
        self.version = -1
        self._buckets: list[tuple[Packed, Tensor]] = []
        self._room: list[Tensor] = []
        self._stream: torch.cuda.Stream | None = None
        self._copied: list[torch.cuda.Event] = []

    def begin(self, version: int) -> None:
        """Forget what there is: another version comes."""
        self.version, self._buckets, self._copied = version, [], []

    def keep(self, packed: Packed, flat: Tensor) -> None:
        """Keep a bucket; on a GPU the copy goes on beside what is computed, until `wait`."""
        if flat.device.type == "cpu":
            self._buckets.append((packed, flat))  # made anew for each bucket
            return
        number = len(self._buckets)
        if number == len(self._room):
            self._room.append(torch.empty(0))
        if self._room[number].numel() < flat.numel():
            self._room[number] = torch.empty(flat.numel(), dtype=torch.uint8, pin_memory=True)
        host = self._room[number][: flat.numel()]
        # On a stream of its own, so that the way to the host holds up no broadcast; `record_stream` keeps the allocator from
        # giving the bucket's memory away before the copy is done.
        self._stream = self._stream or torch.cuda.Stream(flat.device)
        self._stream.wait_stream(torch.cuda.current_stream(flat.device))
        with torch.cuda.stream(self._stream):
            host.copy_(flat, non_blocking=True)
            self._copied.append(self._stream.record_event())
        flat.record_stream(self._stream)
        self._buckets.append((packed, host))

    def wait(self, number: int) -> None:
        """Wait until a bucket and those before it have been copied."""
        if 0 <= number < len(self._copied):
            self._copied[number].synchronize()

    def buckets(self) -> Iterator[dict[str, Tensor]]:
        """Yield the buckets again."""
        self.wait(len(self._copied) - 1)
        for packed, flat in self._buckets:
            yield dict(packed.unpack(flat))


class WeightSender:
    """Sends versions of the weights to the engines of one rank of the learners. Used by one thread at a time.

    Args:
        way: of the bytes; see `windtunnel.rl.transfer`.
        device: of the weights: the CPU for gloo.
        limit: seconds that an engine may take for a bucket.
        host: by which engines find this process.
    """

    def __init__(self, way: Way, device: torch.device, limit: float, host: str = "127.0.0.1") -> None:
        assert (device.type == "cpu") == (way == "gloo")
        self._way, self._device, self._limit, self._host = way, device, limit, host
        self._store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=limit))
        # Group and turn are in every key of the store: what is late in an old group meets nobody.
        self._members, self._number, self._turn = 1, 0, 0
        self._group: Any = None
        self._buffers: dict[int, tuple[Tensor, str]] = {}
        self._keys: list[str] = []

    def invite(self, workers: Sequence[int]) -> list[Invitation]:
        """Begin a group with engines of so many workers each; what each engine is to `join`, while `connect` waits for it."""
        self._number += 1
        self._turn = 0
        self._members = 1 + sum(workers)
        at, found = 1, []
        for count in workers:
            found.append(self._invitation(at))
            at += count
        self._group = None
        return found

    def connect(self) -> None:
        """Wait until the invited engines have joined. Raises EngineFailed."""
        try:
            self._group = connected(self._invitation(0), self._store, 0, self._device)
        except RuntimeError as error:
            raise EngineFailed(f"no engine joined to receive weights within {self._limit:.4g} s: {error}") from None
        # NCCL makes its connections at the first broadcast, and would wait there for ever for one that has died.
        joined = joined_key(self._number)
        missing = f"not all of {self._members - 1} workers joined to receive weights"
        self._until(lambda: self._store.add(joined, 0) >= self._members - 1, missing, nothing)

    def send(
        self, version: int, buckets: Iterable[dict[str, Tensor]], check: Callable[[], None] = nothing, held: Held | None = None
    ) -> None:
        """Send a version to the engines, which are receiving it.

        Args:
            version: of the weights.
            buckets: tensors by their names in files, on any device; split here where they are large. They are iterated to their
                end even if an engine fails: they may be gathered from other ranks.
            check: called while there is a wait; what it raises ends it.
            held: keeps the version, all of it even if an engine fails.

        Raises:
            EngineFailed: an engine did not take a bucket in time, or its connection broke.
        """
        self._forget()
        if held is not None:
            held.begin(version)
        way = _Progress()
        try:
            for bucket in _split(buckets):
                self._pass_on(way, bucket, check, held)
            if way.failure is None:
                self._say(way.number, Packed(ends=True, sums=way.names.hexdigest()))
                self._wait(way.number - 2, check)
                self._wait(way.number - 1, check)
        except BaseException as error:
            self._give_up(way.number, error)
            raise
        finally:
            self._turn += 1
        if way.failure is not None:
            raise way.failure

    def _pass_on(self, way: _Progress, bucket: dict[str, Tensor], check: Callable[[], None], held: Held | None) -> None:
        """Send a bucket, unless an engine has failed; and have it held."""
        # Two rooms take turns: this bucket goes where the last but one was, which every worker must have read by then.
        self._try(way, lambda: self._wait(way.number - 2, check))
        if held is not None:
            held.wait(way.number - 2)  # its bytes are where the next ones go
        elif way.failure is not None:
            return
        packed, flat = self._pack(way.number, bucket, shared=way.failure is None)
        if held is not None:
            held.keep(packed, flat)
        self._try(way, lambda: self._send(way.number, packed, flat, check))
        way.add(bucket)

    def _try(self, way: _Progress, work: Callable[[], None]) -> None:
        """Do something with the engines, unless one has failed; what fails now ends the sending, and not the gathering."""
        if way.failure is None:
            try:
                work()
            except EngineFailed as error:
                way.failure = error
                self._give_up(way.number, error)

    def _invitation(self, first: int) -> Invitation:
        return Invitation(self._way, self._host, self._store.port, self._number, first, self._members, self._limit)

    def _key(self, number: int) -> str:
        return bucket_key(self._number, self._turn, number)

    def _say(self, number: int, packed: Packed) -> None:
        self._keys.append(self._key(number))
        self._store.set(self._key(number), packed.text())

    def _give_up(self, number: int, why: BaseException) -> None:
        """Tell whoever waits for the next buckets."""
        # Receivers may be as far ahead as there are rooms, each waiting for another bucket.
        for next_one in range(number, number + 3):
            self._say(next_one, Packed(abandoned=f"{type(why).__name__}: {why}"))

    def _forget(self) -> None:
        """Remove what the store has of the version before; all have read it, or will not."""
        for key in self._keys:
            self._store.delete_key(key)
            self._store.delete_key(f"{key}/taken")
        self._keys.clear()

    def _pack(self, number: int, bucket: dict[str, Tensor], shared: bool) -> tuple[Packed, Tensor]:
        """Return what is in a bucket, and its bytes on this sender's device; `shared`: where engines read them."""
        flat, handle = self._room(number % 2, sum(padded(tensor.nbytes) for tensor in bucket.values()), shared)
        at = 0
        for tensor in bucket.values():
            flat[at : at + tensor.nbytes].copy_(tensor.contiguous().view(-1).view(torch.uint8))
            # The room is used again: what was there before must not get into the digest.
            flat[at + tensor.nbytes : at + padded(tensor.nbytes)].zero_()
            at += padded(tensor.nbytes)
        dtypes = tuple(str(tensor.dtype).removeprefix("torch.") for tensor in bucket.values())
        shapes = tuple(tuple(tensor.shape) for tensor in bucket.values())
        # The digest waits for the device: the buffer is whole when others are told of it.
        return Packed(tuple(bucket), dtypes, shapes, digest(flat), handle), flat

    def _send(self, number: int, packed: Packed, flat: Tensor, check: Callable[[], None]) -> None:
        self._say(number, packed)
        if self._group is None:
            return
        try:
            work = broadcast(self._group, flat)
            self._until(work.is_completed, f"bucket {number} was not received", check)
            work.wait()
        except RuntimeError as error:
            raise EngineFailed(f"an engine's connection broke at bucket {number} of its weights: {error}") from None

    def _room(self, which: int, size: int, shared: bool) -> tuple[Tensor, str]:
        """Return bytes for a bucket, on this sender's device, and their handle where engines read them."""
        if self._way != "ipc" or not shared:
            return torch.empty(size, dtype=torch.uint8, device=self._device), ""
        if which not in self._buffers or self._buffers[which][0].numel() < size:
            self._buffers.pop(which, None)
            self._buffers[which] = shared_buffer(size, self._device)
        buffer, handle = self._buffers[which]
        return buffer[:size], handle

    def _wait(self, number: int, check: Callable[[], None]) -> None:
        """Wait until every worker has taken a bucket, whose room is then free."""
        if number < 0:
            return
        taken = f"{self._key(number)}/taken"
        what = f"bucket {number} was not taken by all {self._members - 1} workers"
        self._until(lambda: self._store.add(taken, 0) >= self._members - 1, what, check)

    def _until(self, done: Callable[[], bool], what: str, check: Callable[[], None]) -> None:
        ends = time.monotonic() + self._limit
        try:
            while not done():
                check()
                if time.monotonic() > ends:
                    raise EngineFailed(f"{what} within {self._limit:.4g} s")
                time.sleep(POLL_SECONDS)
        except EngineFailed:
            # A broadcast that hangs would hold the GPU's stream, and all that comes after it; an engine that has died takes
            # part in none any more.
            if self._way == "nccl" and self._group is not None:
                self._group.abort()
            raise


def _split(buckets: Iterable[dict[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    """Yield the same tensors, no bucket larger than BUCKET_BYTES unless it is one tensor."""
    for bucket in buckets:
        part: dict[str, Tensor] = {}
        size = 0
        for name, tensor in bucket.items():
            if part and size + tensor.nbytes > BUCKET_BYTES:
                yield part
                part, size = {}, 0
            part[name] = tensor
            size += tensor.nbytes
        if part:
            yield part
