"""Runs: the folder, metrics, checkpoints, budget and bands of one execution. No torch."""

from .metrics import Event, Metrics, MetricsReader, Point
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
    "Event",
    "Metrics",
    "MetricsReader",
    "Point",
    "Saved",
    "apply_retention",
    "disk_needed",
]
