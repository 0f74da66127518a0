"""What a checkpoint holds as PyTorch's Distributed Checkpoint (DCP) sees it, and reading it back.

DCP describes a tensor by boxes: offsets and sizes in the tensor's own dimensions, wherever they lie in
the files. What is loaded names the boxes it wants, so that a checkpoint of any number of ranks is read
by any other number, in any sharding. It knows Tensors (the same on every rank, written once) and
DTensors; `Slice` adds what an optimizer with flat buffers owns.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner, FileSystemReader
from torch.distributed.checkpoint.default_planner import create_default_local_load_plan
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.checkpoint.utils import find_tensor_shard

from windtunnel.recipe import UserError

from .folder import MODEL, DamagedCheckpoint
from .slices import Value

if TYPE_CHECKING:
    from .folder import Checkpoint

_UNREADABLE = (OSError, RuntimeError, ValueError, KeyError, EOFError, AttributeError, AssertionError, pickle.UnpicklingError)


class SavePlanner(DefaultSavePlanner):
    """DCP's planner, for flat mappings that may hold Slices."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        """Return this rank's tensor for a box."""
        return find_tensor_shard(self.state_dict[index.fqn], index)


class LoadPlanner(DefaultLoadPlanner):
    """DCP's planner, for flat mappings that may hold Slices."""

    def set_up_planner(self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False) -> None:
        """Take what is to be filled; DCP's own would look for meta tensors and drop what it does not know."""
        self.state_dict = self.original_state_dict = state_dict
        self.metadata, self.is_coordinator = metadata, is_coordinator

    def create_local_plan(self) -> LoadPlan:
        """Plan the reads of this rank."""
        assert self.metadata is not None
        return create_default_local_load_plan(self.state_dict, self.metadata, True)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        """Return this rank's tensor for a box."""
        return find_tensor_shard(self.state_dict[index.fqn], index)


class Part:
    """The weights (`model`) or the other states (`optimizer`) of a checkpoint, for reading.

    Files are read box by box: beside what is filled no more is held than one box of one tensor. No process group is used.

    Attributes:
        entries: what DCP knows of each tensor, by name: size, dtype, boxes.

    Raises:
        DamagedCheckpoint: what lists the tensors cannot be read.
        UserError: the checkpoint has no such part.
    """

    def __init__(self, checkpoint: Checkpoint, part: str = MODEL) -> None:
        self.path, self.part = checkpoint.path, part
        if f"{part}/.metadata" not in checkpoint.files:
            why = "older checkpoints keep weights only" if part != MODEL else "it was saved without"
            raise UserError(f"checkpoint {checkpoint.path} has no {part}: {why}", "use the newest checkpoint")
        self._reader = _Reader(checkpoint.path / part)
        try:
            self._metadata = self._reader.read_metadata()
        except _UNREADABLE as error:
            raise self._damaged(error) from None
        # As coordinator, though there are several ranks: each reads for itself, and no group is asked.
        self._reader.set_up_storage_reader(self._metadata, True)
        found = sorted(self._metadata.state_dict_metadata.items())
        self.entries = {name: entry for name, entry in found if isinstance(entry, TensorStorageMetadata)}

    def load(self, values: Mapping[str, Value]) -> None:
        """Fill values in place; a rank reads what it holds, whatever the number of ranks that saved it.

        Raises:
            DamagedCheckpoint: a file cannot be read.
            UserError: the checkpoint is of another model: a tensor is missing, or of another shape.
        """
        for name, value in values.items():
            # Before the first byte: an engine half filled with another model is of no use.
            size = self.entries[name].size if name in self.entries else None
            if size != value.size():
                found = "missing" if size is None else f"of shape {list(size)}"
                raise UserError(
                    f"checkpoint {self.path}: {name} is {found}, expected {list(value.size())}",
                    "use the recipe that the checkpoint was saved by",
                )
        planner = LoadPlanner()
        # DCP works out which boxes of the files meet those that are wanted, whatever both are cut into.
        planner.set_up_planner(dict(values), self._metadata, True)
        try:
            with torch.no_grad():
                self._reader.read_data(planner.create_local_plan(), planner).wait()
        except _UNREADABLE as error:
            raise self._damaged(error) from None

    def tensors(self, chosen: Iterable[str] | None = None) -> Iterator[tuple[str, Tensor]]:
        """Yield whole tensors on the host one after the other, all in the order of their names or those chosen."""
        for name in self.entries if chosen is None else chosen:
            if name not in self.entries:
                raise UserError(f"checkpoint {self.path} has no tensor {name}", f"it has {', '.join([*self.entries][:5])}, ...")
            # One at a time: whoever takes them decides how much is held.
            tensor = torch.empty(self.entries[name].size, dtype=self.entries[name].properties.dtype)
            self.load({name: tensor})
            yield name, tensor

    def _damaged(self, error: BaseException) -> DamagedCheckpoint:
        words = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return DamagedCheckpoint(f"damaged checkpoint {self.path}: {self.part} cannot be read: {words.splitlines()[0]}")


class _Reader(FileSystemReader):
    """DCP's reader; the list of tensors is a pickle, of which only what DCP writes into it is taken."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with open(Path(self.path) / ".metadata", "rb") as file:
            metadata: Metadata = _MetadataUnpickler(file).load()
        return metadata


class _MetadataUnpickler(pickle.Unpickler):
    """Refuse everything but descriptions of tensors: a checkpoint may come from a stranger."""

    def find_class(self, module: str, name: str) -> Any:
        # A pickle can name any function of any module, and call it when it is read.
        found = super().find_class(module, name)
        described = module == "torch.distributed.checkpoint.metadata" and isinstance(found, type)
        if described or isinstance(found, torch.dtype) or (module, name) in _HARMLESS:
            return found
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a list of tensors")


_HARMLESS = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
}
