"""Runs: the folder, metrics, checkpoints, budget and bands of one execution. No torch."""

from .advising import Settings, settings_of
from .bands import Alert, BandWatch, Targets
from .bands_recursion import RecursionLimits
from .budget import STARTED, BudgetClock, BudgetSpent, EpochsVerdict, Spent, epochs_over_data, load_spent
from .choosing import Which, choose_checkpoint
from .digits import apart
from .ending import LAST_LINES, Outcome, outcome, record_end
from .files import fsync_folder, write_atomic
from .folder import RunFolder, RunSummary, list_runs, new_folder, newest_run
from .gates import GateResult, gate_series, judge_gates
from .heartbeat import FOLDER as HEARTBEATS
from .heartbeat import WAITING, Beat, Heartbeat, read_beat
from .identity import first_difference
from .metrics import Event, Metrics, MetricsReader, Point
from .names import METRICS, STEP_METRICS, described, of_step, step_values
from .output import (
    LOG,
    SUPERVISOR,
    BackgroundWriter,
    Channel,
    LineDecoder,
    RunLog,
    SafeStream,
    log_files,
    log_only,
)
from .processes import ProcessId, holder, is_live, process_state
from .retention import DiskNeed, apply_retention, disk_needed
from .signals import STOP_FILE, STOPPING, StoppedEarly, StopRequest, stop_early
from .store import Checkpoint, CheckpointStore, DamagedCheckpoint
from .tensors import Written, checksum
from .writer import CheckpointWriter, DiskFull, Saved

__all__ = [
    "HEARTBEATS",
    "LAST_LINES",
    "LOG",
    "METRICS",
    "STARTED",
    "STEP_METRICS",
    "STOPPING",
    "STOP_FILE",
    "SUPERVISOR",
    "WAITING",
    "Alert",
    "BackgroundWriter",
    "BandWatch",
    "Beat",
    "BudgetClock",
    "BudgetSpent",
    "Channel",
    "Checkpoint",
    "CheckpointStore",
    "CheckpointWriter",
    "DamagedCheckpoint",
    "DiskFull",
    "DiskNeed",
    "EpochsVerdict",
    "Event",
    "GateResult",
    "Heartbeat",
    "LineDecoder",
    "Metrics",
    "MetricsReader",
    "Outcome",
    "Point",
    "ProcessId",
    "RecursionLimits",
    "RunFolder",
    "RunLog",
    "RunSummary",
    "SafeStream",
    "Saved",
    "Settings",
    "Spent",
    "StopRequest",
    "StoppedEarly",
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
    "holder",
    "is_live",
    "judge_gates",
    "list_runs",
    "load_spent",
    "log_files",
    "log_only",
    "new_folder",
    "newest_run",
    "of_step",
    "outcome",
    "process_state",
    "read_beat",
    "record_end",
    "settings_of",
    "step_values",
    "stop_early",
    "write_atomic",
]
