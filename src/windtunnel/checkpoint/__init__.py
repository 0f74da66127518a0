"""Checkpoints: DCP shards inside an atomic, checksummed, rotated folder; export to Hugging Face's layout. torch on use."""

from typing import TYPE_CHECKING, Any

from .export import Exported, Shards, export_run, is_export, to_disk, verify_export, write_export, write_shards
from .folder import (
    MODEL,
    OPTIMIZER,
    Checkpoint,
    CheckpointStore,
    Chosen,
    DamagedCheckpoint,
    NoGoodCheckpoint,
    Which,
    Written,
    checksum,
    choose_checkpoint,
)
from .retention import Retained, apply_retention, make_room

if TYPE_CHECKING:
    from .saver import DiskFull, Facts, Group, Saved, Saver, SpoiledWeights
    from .tensors import Part, Slice, Value

__all__ = [
    "MODEL",
    "OPTIMIZER",
    "Checkpoint",
    "CheckpointStore",
    "Chosen",
    "DamagedCheckpoint",
    "DiskFull",
    "Exported",
    "Facts",
    "Group",
    "NoGoodCheckpoint",
    "Part",
    "Retained",
    "Saved",
    "Saver",
    "Shards",
    "Slice",
    "SpoiledWeights",
    "Value",
    "Which",
    "Written",
    "apply_retention",
    "checksum",
    "choose_checkpoint",
    "export_run",
    "is_export",
    "make_room",
    "to_disk",
    "verify_export",
    "write_export",
    "write_shards",
]

_LAZY = dict.fromkeys(("DiskFull", "Facts", "Group", "Saved", "Saver", "SpoiledWeights"), "saver")
_LAZY |= dict.fromkeys(("Part", "Slice", "Value"), "tensors")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(name)
