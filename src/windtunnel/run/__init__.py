"""Runs: the folder, metrics, checkpoints, budget and bands of one execution. No torch."""

from .bands import Alert, BandWatch, Targets
from .budget import STARTED, BudgetClock, BudgetSpent, EpochsVerdict, Spent, epochs_over_data, load_spent
from .files import write_atomic
from .folder import RunFolder, RunSummary, is_live, list_runs, new_folder, newest_run
from .metrics import Event, Metrics, MetricsReader, Point
from .names import METRICS
from .retention import DiskNeed, apply_retention, disk_needed
from .signals import StopRequest
from .store import Checkpoint, CheckpointStore, DamagedCheckpoint
from .writer import CheckpointWriter, DiskFull, Saved

__all__ = [
    "METRICS",
    "STARTED",
    "Alert",
    "BandWatch",
    "BudgetClock",
    "BudgetSpent",
    "Checkpoint",
    "CheckpointStore",
    "CheckpointWriter",
    "DamagedCheckpoint",
    "DiskFull",
    "DiskNeed",
    "EpochsVerdict",
    "Event",
    "Metrics",
    "MetricsReader",
    "Point",
    "RunFolder",
    "RunSummary",
    "Saved",
    "Spent",
    "StopRequest",
    "Targets",
    "apply_retention",
    "disk_needed",
    "epochs_over_data",
    "is_live",
    "list_runs",
    "load_spent",
    "new_folder",
    "newest_run",
    "write_atomic",
]
