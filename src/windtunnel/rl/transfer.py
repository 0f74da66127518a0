"""How weights travel from a learner to engines without a disk: what both sides agree on.

A learner's rank sends its engines one bucket after the other, each some tensors laid end to end in bytes. A store that the
learner keeps says what is in a bucket, and counts who has taken it. The bytes go by one of three ways:

    gloo  broadcast between hosts' memories: a CPU, for tests and small models
    nccl  broadcast between GPUs
    ipc   the engine reads the learner's buffer: both on one host, the learner's GPU among those that the engine sees
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import pickle
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

Way = Literal["gloo", "nccl", "ipc"]
COLUMNS = 1024


@dataclass(frozen=True)
class Invitation:
    """What an engine needs to receive weights.

    Attributes:
        way: of the bytes. host, port: of the learner's store.
        group: number of the senders' and receivers' group; it grows with each that is formed anew.
        first: rank in it of the engine's first worker, the learner being 0. members: of the group.
        seconds: that any wait may take.
    """

    way: Way
    host: str
    port: int
    group: int
    first: int
    members: int
    seconds: float


@dataclass(frozen=True)
class Packed:
    """What is in a bucket, or that there is no more.

    Attributes:
        names, dtypes, shapes: of its tensors, in their order.
        sums: digest of its bytes as the learner has them.
        handle: of the learner's buffer, where the engine reads it.
        ends: no bucket follows; then `names` is empty and `sums` the digest of all names. abandoned: why, if the learner gave up.
    """

    names: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    sums: str = ""
    handle: str = ""
    ends: bool = False
    abandoned: str = ""

    @property
    def size(self) -> int:
        """Return the bytes of its tensors."""
        return sum(size for _, _, size in self._parts())

    @property
    def room(self) -> int:
        """Return the bytes of the bucket, each tensor beginning where any dtype may."""
        return sum(padded(size) for _, _, size in self._parts())

    def text(self) -> str:
        """Return JSON that `read` reads."""
        return json.dumps(asdict(self))

    @staticmethod
    def read(text: str | bytes) -> Packed:
        """Read one from JSON."""
        value = json.loads(text)
        lists = {key: tuple(value[key]) for key in ("names", "dtypes")}
        return Packed(**{**value, **lists, "shapes": tuple(tuple(shape) for shape in value["shapes"])})

    def unpack(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors as views of the bucket's bytes (n,) uint8."""
        at = 0
        for name, (dtype, shape, size) in zip(self.names, self._parts(), strict=True):
            yield name, flat[at : at + size].view(dtype).view(shape)
            at += padded(size)

    def _parts(self) -> Iterator[tuple[torch.dtype, tuple[int, ...], int]]:
        for name, shape in zip(self.dtypes, self.shapes, strict=True):
            # By name, as JSON has it: the two sides may run other versions of PyTorch.
            dtype: torch.dtype = getattr(torch, name)
            yield dtype, shape, dtype.itemsize * int(torch.Size(shape).numel())


def padded(size: int) -> int:
    """Return the bytes that a tensor takes in a bucket, so that the next one begins where any dtype may."""
    return -(-size // 16) * 16


def digest(flat: Tensor) -> str:
    """Return a digest of all bytes of (n,) uint8, n divisible by 8, that is summed up where they are."""
    # Sums of whole numbers are the same on every device and in any order, as those of floats are not; and of a bucket only
    # COLUMNS numbers leave the device.
    words = flat.view(torch.int64)
    whole = words.numel() // COLUMNS * COLUMNS
    sums = words[:whole].view(-1, COLUMNS).sum(0)
    sums[: words.numel() - whole] += words[whole:]
    place = torch.arange(1, COLUMNS + 1, device=sums.device)
    return hashlib.blake2b((sums * place).cpu().numpy().tobytes(), digest_size=16).hexdigest()


def bucket_key(group: int, turn: int, number: int) -> str:
    """Return where the store has a bucket's `Packed`; with `/taken` how many workers have it. `turn`: of the group's versions."""
    return f"{group}/{turn}/{number}"


def joined_key(group: int) -> str:
    """Return where the store counts the workers that have joined."""
    return f"{group}/joined"


def connected(given: Invitation, store: dist.Store, rank: int, device: torch.device) -> Any:
    """Return the group that broadcasts, as member `rank`; None where bytes are read from the learner's buffer."""
    if given.way == "ipc":
        return None
    own = dist.PrefixStore(f"group-{given.group}", store)
    if given.way == "gloo":
        return dist.ProcessGroupGloo(own, rank, given.members, timedelta(seconds=given.seconds))
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=10 * given.seconds)  # whoever waits has a shorter limit of its own
    torch.cuda.set_device(device)
    with _no_watchdog():
        return dist.ProcessGroupNCCL(own, rank, given.members, options)


def broadcast(group: Any, flat: Tensor) -> Any:
    """Begin to send (n,) uint8 from the learner to all, or to receive it; what it gives is waited for."""
    options = dist.BroadcastOptions()
    # The learner is always member 0.
    options.rootRank, options.rootTensor = 0, 0
    return group.broadcast([flat], options)


@contextlib.contextmanager
def _no_watchdog() -> Iterator[None]:
    """Have NCCL's group not end this process when another member dies: the learner starts that one again."""
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def shared_buffer(size: int, device: torch.device) -> tuple[Tensor, str]:
    """Return (size,) uint8 on a GPU that other processes may open, and its handle."""
    from torch.multiprocessing.reductions import reduce_tensor

    with torch.cuda.device(device), _plain_segments():
        buffer = torch.empty(size, dtype=torch.uint8, device=device)
    # A GPU's number differs between processes that see different ones; its UUID does not.
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    content = pickle.dumps((uuid, reduce_tensor(buffer)[1]))
    return buffer, base64.b64encode(content).decode()


def opened_buffer(handle: str) -> Tensor:
    """Open another process's buffer. Raises RuntimeError where its GPU is not seen here."""
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    uuid, arguments = pickle.loads(base64.b64decode(handle))
    here = [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]
    if uuid not in here:
        raise RuntimeError(f"the learner's GPU {uuid} is not among those of the engine: {', '.join(here)}")
    there = list(arguments)
    there[6] = here.index(uuid)  # its number in this process
    buffer: Tensor = rebuild_cuda_tensor(*there)
    return buffer


@contextlib.contextmanager
def _plain_segments() -> Iterator[None]:
    """Have memory allocated as other processes can open it: expandable segments take rights that containers do not give."""
    settings = ",".join(filter(None, (os.environ.get(name) for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"))))
    # Switched off for this buffer alone: training goes on with what it was set to.
    expandable = "expandable_segments:True" in settings
    # torch 2.11 gives it another name, and warns of the old one in every run's output.
    change = getattr(torch._C, "_accelerator_setAllocatorSettings", None) or torch.cuda.memory._set_allocator_settings
    if expandable:
        change("expandable_segments:False")
    try:
        yield
    finally:
        if expandable:
            change("expandable_segments:True")
