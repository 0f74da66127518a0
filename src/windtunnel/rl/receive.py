"""An engine worker's side of weights that come without a disk."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from .errors import BrokenSnapshot
from .transfer import Invitation, Packed, broadcast, bucket_key, connected, digest, joined_key, opened_buffer


class WeightReceiver:
    """Receives versions as one worker of an engine.

    Args:
        given: the learner's invitation.
        worker: rank of this worker in its engine.
        device: that it computes on.

    Raises:
        RuntimeError: the learner cannot be reached in time.
    """

    def __init__(self, given: Invitation, worker: int, device: torch.device) -> None:
        self._given, self._device = given, device
        self._store = dist.TCPStore(given.host, given.port, is_master=False, timeout=timedelta(seconds=given.seconds))
        self._group = connected(given, self._store, given.first + worker, device)
        self._store.add(joined_key(given.group), 1)
        self._opened: dict[str, Tensor] = {}
        self._names: frozenset[str] = frozenset()
        self._turn = 0
        self.tensors, self.bytes = 0, 0

    def receive(self, version: int) -> Iterator[list[tuple[str, Tensor]]]:
        """Yield a version's tensors by their names in files, bucket by bucket, whole, on this worker's device.

        Raises:
            BrokenSnapshot: what came is not what was sent, or fewer tensors came than of the version before.
            RuntimeError: the learner gave up, or did not go on in time.
        """
        names = list[str]()
        self.tensors, self.bytes = 0, 0
        try:
            for bucket in self._buckets(version):
                yield bucket
                names += (name for name, _ in bucket)
        finally:
            self._turn += 1  # as on the learner's side
        # A learner that leaves a tensor out sends a right digest of the rest.
        if lost := self._names - set(names):
            raise BrokenSnapshot(f"version {version} lacks {min(lost)}, which the version before had")
        self._names = frozenset(names)

    def _buckets(self, version: int) -> Iterator[list[tuple[str, Tensor]]]:
        read, number = hashlib.blake2b(digest_size=16), 0
        while not (packed := self._next(version, number)).ends:
            flat = self._bytes(packed)
            if (found := digest(flat)) != packed.sums:
                raise BrokenSnapshot(f"bucket {number} of version {version} is not what was sent: {found}, not {packed.sums}")
            # Taken, not yet loaded: the learner may reuse the buffer, since the bytes are this worker's own by now.
            self._store.add(f"{self._key(number)}/taken", 1)
            yield list(packed.unpack(flat))
            # Over names in their order: a bucket that was sent twice, or not at all, changes it.
            read.update("\n".join(packed.names).encode() + b"\n")
            self.tensors += len(packed.names)
            self.bytes += packed.size
            number += 1
        if read.hexdigest() != packed.sums or not number:
            raise BrokenSnapshot(f"of version {version} other tensors came than were sent")

    def _key(self, number: int) -> str:
        return bucket_key(self._given.group, self._turn, number)

    def _next(self, version: int, number: int) -> Packed:
        key, limit = self._key(number), self._given.seconds
        try:
            self._store.wait([key], timedelta(seconds=limit))
        except RuntimeError:
            raise RuntimeError(f"the learner sent no bucket {number} of version {version} within {limit:.4g} s") from None
        packed = Packed.read(self._store.get(key))
        if packed.abandoned:
            raise RuntimeError(f"the learner gave up at bucket {number} of version {version}: {packed.abandoned}")
        return packed

    def _bytes(self, packed: Packed) -> Tensor:
        """Return a bucket's bytes, this worker's own."""
        if packed.handle:
            if packed.handle not in self._opened:
                self._opened = dict(list(self._opened.items())[-1:])  # the learner has two at a time
                self._opened[packed.handle] = opened_buffer(packed.handle)
            flat = self._opened[packed.handle][: packed.room].to(self._device, copy=True)
            torch.cuda.synchronize(self._device)
            return flat
        flat = torch.empty(packed.room, dtype=torch.uint8, device=self._device)
        broadcast(self._group, flat).wait(timedelta(seconds=self._given.seconds))
        return flat
