"""Runs: the folder, metrics, checkpoints, budget and bands of one execution. No torch."""

from .folder import RunFolder, RunSummary, is_live, list_runs, newest_run
from .metrics import Event, Metrics, MetricsReader, Point
from .names import METRICS
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
    "METRICS",
    "Metrics",
    "MetricsReader",
    "Point",
    "RunFolder",
    "RunSummary",
    "Saved",
    "apply_retention",
    "disk_needed",
    "is_live",
    "list_runs",
    "newest_run",
]
