"""Checkpoints: DCP shards inside an atomic, checksummed, rotated folder; export to Hugging Face's layout. torch on use."""

from typing import TYPE_CHECKING

from windtunnel import lazy

from .export import (
    DTYPES,
    SHARD_BYTES,
    Exported,
    Shards,
    cast_tensors,
    export_folder,
    export_run,
    is_export,
    to_disk,
    verify_export,
    write_export,
    write_shards,
)
from .folder import MODEL, OPTIMIZER, Checkpoint, DamagedCheckpoint, Written, checksum, read_checkpoint
from .retention import Retained, apply_retention, make_room
from .store import CheckpointStore, Chosen, NoGoodCheckpoint, Which, choose_checkpoint

if TYPE_CHECKING:
    from .saver import DiskFull, Facts, Group, Saved, Saver, SpoiledWeights, save_now
    from .slices import Slice, Value
    from .tensors import Part

__all__ = [
    "DTYPES",
    "MODEL",
    "OPTIMIZER",
    "SHARD_BYTES",
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
    "cast_tensors",
    "checksum",
    "choose_checkpoint",
    "export_folder",
    "export_run",
    "is_export",
    "make_room",
    "read_checkpoint",
    "save_now",
    "to_disk",
    "verify_export",
    "write_export",
    "write_shards",
]

__getattr__ = lazy(__name__)
