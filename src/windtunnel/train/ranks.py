"""The processes of one training job: who this one is, its device, and what rank 0 tells the others."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from windtunnel.run import WAITING, Heartbeat

# `windtunnel.launch` notices a rank that dies or hangs long before; this bounds the wait where torchrun started the ranks.
RANKS_TIMEOUT = datetime.timedelta(minutes=15)


@dataclass(frozen=True)
class Ranks:
    """This process among `world` of them."""

    rank: int
    world: int
    device: torch.device
    control: dist.ProcessGroup | None  # host-side group for decisions; None for one process
    heartbeat: Heartbeat = field(default_factory=lambda: Heartbeat(int(os.environ.get("RANK", "0"))))

    @property
    def first(self) -> bool:
        """Return whether this is rank 0, which decides, logs and shows."""
        return self.rank == 0

    def share(self, value: Any) -> Any:
        """Return rank 0's JSON value on every rank. Host only: the GPU goes on meanwhile."""
        if self.control is None:
            return value
        payload = [json.dumps(value) if self.first else None]
        with self._waiting():
            dist.broadcast_object_list(payload, src=0, group=self.control)
        return json.loads(payload[0] or "null")

    def gather(self, value: Any) -> list[Any]:
        """Return all ranks' JSON values in their order on rank 0; elsewhere an empty list."""
        if self.control is None:
            return [value]
        found: list[Any] | None = [None] * self.world if self.first else None
        with self._waiting():
            dist.gather_object(json.dumps(value), found, dst=0, group=self.control)
        return [json.loads(text) for text in found or ()]

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.control is not None:
            with self._waiting():
                dist.barrier(group=self.control)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Say meanwhile that this rank waits for others: it is then another one that hangs. After an error it still does."""
        before = self.heartbeat.doing
        self.heartbeat.beat(WAITING)
        yield
        self.heartbeat.beat(before)

    def leave(self) -> None:
        """Let go of the other ranks, which wait for this one in a collective: their gloo finds its connections closed.

        Aborting the process group would do the same only once nothing refers to it any more, such as a DTensor's mesh.
        """
        if self.control is None:
            return
        # Connections of the store stay, on either side of them: other ranks may still need it to end in good order.
        store, descriptors = os.environ.get("MASTER_PORT", ""), Path("/proc/self/fd")
        for entry in os.listdir(descriptors) if descriptors.exists() else ():
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(entry))) as one:
                network = one.family in (socket.AF_INET, socket.AF_INET6)
                if network and str(one.getpeername()[1]) != store and str(one.getsockname()[1]) != store:
                    one.shutdown(socket.SHUT_RDWR)


@contextmanager
def join_ranks(device: str) -> Iterator[Ranks]:
    """Join the process group that torchrun's environment describes, or be the only process.

    Args:
        device: 'cuda' or 'cpu'.
    """
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    where = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if device == "cuda" else torch.device("cpu")
    if where.type == "cuda":
        torch.cuda.set_device(where)
    if world == 1:
        yield Ranks(0, 1, where, None)
        return
    if where.type == "cuda":
        dist.init_process_group("nccl", timeout=RANKS_TIMEOUT, device_id=where)
        # Decisions go over gloo: NCCL would put them into the GPU's queue, behind the step, and the host would wait for that.
        control = dist.new_group(backend="gloo", timeout=RANKS_TIMEOUT)
    else:
        dist.init_process_group("gloo", timeout=RANKS_TIMEOUT)
        control = dist.group.WORLD
    try:
        yield Ranks(rank, world, where, control)
    finally:
        with contextlib.suppress(RuntimeError):  # of connections that are closed already
            dist.destroy_process_group()
