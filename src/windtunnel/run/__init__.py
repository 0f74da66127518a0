"""Runs: the folder, metrics, checkpoints, budget and bands of one execution. No torch."""

from .advising import Settings, settings_of
from .bands import Alert, BandWatch, Targets
from .bands_recursion import RecursionLimits
from .budget import STARTED, BudgetClock, BudgetSpent, EpochsVerdict, Spent, epochs_over_data, load_spent
from .choosing import Which, choose_checkpoint
from .digits import apart
from .files import fsync_folder, write_atomic
from .folder import RunFolder, RunSummary, is_live, list_runs, new_folder, newest_run
from .gates import GateResult, gate_series, judge_gates
from .identity import first_difference
from .metrics import Event, Metrics, MetricsReader, Point
from .names import METRICS, STEP_METRICS, described, of_step, step_values
from .retention import DiskNeed, apply_retention, disk_needed
from .signals import StopRequest
from .store import Checkpoint, CheckpointStore, DamagedCheckpoint
from .tensors import Written, checksum
from .writer import CheckpointWriter, DiskFull, Saved

__all__ = [
    "METRICS",
    "STARTED",
    "STEP_METRICS",
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
    "GateResult",
    "Metrics",
    "MetricsReader",
    "Point",
    "RecursionLimits",
    "RunFolder",
    "RunSummary",
    "Saved",
    "Settings",
    "Spent",
    "StopRequest",
    "Targets",
    "Which",
    "Written",
    "apart",
    "apply_retention",
    "checksum",
    "choose_checkpoint",
    "described",
    "disk_needed",
    "epochs_over_data",
    "first_difference",
    "fsync_folder",
    "gate_series",
    "is_live",
    "judge_gates",
    "list_runs",
    "load_spent",
    "new_folder",
    "newest_run",
    "of_step",
    "settings_of",
    "step_values",
    "write_atomic",
]
