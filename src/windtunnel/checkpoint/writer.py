"""Writing one rank's files of a checkpoint through PyTorch's Distributed Checkpoint (DCP), hashed on the way.

DCP's own writer copies each tensor once more and hashes nothing; here one file a rank is written straight from
the host buffers, and its checksum is known when it is closed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

import torch
import xxhash
from torch import Tensor
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult

from .folder import Written
from .slices import Value
from .staging import Staging
from .tensors import SavePlanner


class HostPlanner(SavePlanner):
    """Gives a save what was staged on the host, where DCP's planner would look at the device."""

    def __init__(self, staging: Staging, part: str) -> None:
        super().__init__()
        self._staging, self._part = staging, part

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        """Return the copy on the host of a box that this rank writes."""
        return self._staging.host[self._part, index]


class PartWriter(FileSystemWriter):
    """DCP's writer, with one file a rank that is hashed while it is written, and no tensor copied for it.

    Attributes:
        files: what was written, by name.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.files: dict[str, Written] = {}

    def storage_meta(self) -> StorageMeta:
        """Return what DCP notes about the storage: nothing."""
        return StorageMeta()  # DCP would store the path, which changes with the folder's name

    def write_data(self, plan: SavePlan, planner: Any) -> torch.futures.Future[list[WriteResult]]:
        """Write this rank's boxes one after another into its file, and note the file's size and checksum in `files`.

        Args:
            plan: this rank's boxes; without any, no file is made.
            planner: gives the tensor of a box.

        Raises:
            OSError: the file could not be written.
        """
        done: torch.futures.Future[list[WriteResult]] = torch.futures.Future()
        # Where ranks are more than boxes.
        if not plan.items:
            done.set_result([])
            return done
        name = f"{plan.storage_data.prefix}0.distcp"
        extents = []
        with _HashedFile(Path(self.path) / name) as file:
            for item in plan.items:
                # Each box by torch.save, one behind the other, as DCP's own reader expects them.
                start = file.tell()
                try:
                    torch.save(planner.resolve_data(item), cast(IO[bytes], file))
                except RuntimeError as error:  # torch's own words for a write that failed
                    raise (file.failed or error) from None
                extents.append((start, file.tell() - start))
            self.files[name] = file.synced()
        done.set_result(write_results(plan, extents))
        return done


class _HashedFile:
    """A new file that knows its size and checksum. Large blocks are hashed and written without the interpreter's lock."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = open(path, "wb", buffering=1 << 20)  # noqa: SIM115 - closed by __exit__
        self._digest = xxhash.xxh3_128()
        self.failed: OSError | None = None

    def write(self, block: Any) -> int:
        # On the way through, while the block is in the cache: a second pass over the file is only to prove the disk.
        self._digest.update(block)
        try:
            return self._file.write(block)
        except OSError as error:
            self.failed = error
            raise

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        self._file.flush()

    def synced(self) -> Written:
        """Put everything on the disk; what the file must look like from now on."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return Written(self._file.tell(), self._digest.hexdigest())

    def __enter__(self) -> _HashedFile:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):  # of a full disk: that is known by now
            self._file.close()


def planner_of(values: Mapping[str, Value]) -> SavePlanner:
    """Return a planner for what this rank holds."""
    planner = SavePlanner()
    planner.set_up_planner(dict(values))
    return planner


def write_results(plan: SavePlan, extents: Iterable[Sequence[int]]) -> list[WriteResult]:
    """Say where in a rank's file each of its items lies, as DCP wants to know it. `extents`: (offset, length) of each, bytes."""
    name = f"{plan.storage_data.prefix}0.distcp"
    return [
        WriteResult(item.index, length, _StorageInfo(name, start, length))
        for item, (start, length) in zip(plan.items, extents, strict=True)
    ]
