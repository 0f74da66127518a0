"""Runs: the folder, metrics, checkpoints, budget and bands of one execution. No torch."""

from .retention import DiskNeed, apply_retention, disk_needed
from .store import Checkpoint, CheckpointStore, DamagedCheckpoint
from .writer import CheckpointWriter, DiskFull, Saved

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "CheckpointWriter",
    "DamagedCheckpoint",
    "DiskFull",
    "DiskNeed",
    "Saved",
    "apply_retention",
    "disk_needed",
]
