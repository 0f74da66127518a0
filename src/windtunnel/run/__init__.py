"""Runs: the folder, metrics, budget and bands of one execution. No torch."""

from .bands import Alert, BandWatch, Finding, GateResult, Judge, Targets
from .budget import STARTED, BudgetClock, BudgetSpent, EpochsVerdict, Spent, epochs_over_data, load_spent
from .database import Room
from .ending import LAST_LINES, Outcome, interrupted, outcome, record_end
from .expected import EVALUATION, Expected, compare_expected
from .folder import JOB_VARIABLE, RunFolder, new_folder, read_manifest, read_own_recipe
from .heartbeat import FOLDER as HEARTBEATS
from .heartbeat import KEEPING, LEAST_SECONDS, WAITING, Beat, Heartbeat, read_beat
from .identity import anchored, by_path, first_difference
from .ledger import Entry, Kind, parse_limit, read_ledger, read_limits, standings, sums
from .listing import RunSummary, list_runs, newest_run
from .metrics import Event, Metrics, MetricsReader, Point
from .names import METRICS, apart, described, judges_of, of_step, step_values
from .notices import NOTICE_SECONDS, NOTICE_VARIABLE, too_late
from .notify import Messenger, notifying, tell_gates
from .output import (
    LOG,
    LOGS,
    SUPERVISOR,
    BackgroundWriter,
    Channel,
    LineDecoder,
    RunLog,
    SafeStream,
    log_files,
    log_only,
    part_logs,
    print_to,
)
from .processes import COMPILING_SECONDS, ProcessId, holder, is_live, name_compilers, process_state, wait_for_compilers
from .quiet import Silence, silence
from .saves import Saves, measured_saves, saves_of
from .signals import STOP_FILE, STOPPING, StoppedEarly, StopRequest, stop_early
from .thinned import Stretch, sampled, stretches
from .track_process import tracking
from .trackers import require_trackers

__all__ = [
    "COMPILING_SECONDS",
    "EVALUATION",
    "HEARTBEATS",
    "JOB_VARIABLE",
    "KEEPING",
    "LAST_LINES",
    "LEAST_SECONDS",
    "LOG",
    "LOGS",
    "METRICS",
    "NOTICE_SECONDS",
    "NOTICE_VARIABLE",
    "STARTED",
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
    "Entry",
    "EpochsVerdict",
    "Event",
    "Expected",
    "Finding",
    "GateResult",
    "Heartbeat",
    "Judge",
    "Kind",
    "LineDecoder",
    "Messenger",
    "Metrics",
    "MetricsReader",
    "Outcome",
    "Point",
    "ProcessId",
    "Room",
    "RunFolder",
    "RunLog",
    "RunSummary",
    "SafeStream",
    "Saves",
    "Silence",
    "Spent",
    "StopRequest",
    "StoppedEarly",
    "Stretch",
    "Targets",
    "anchored",
    "apart",
    "by_path",
    "compare_expected",
    "described",
    "epochs_over_data",
    "first_difference",
    "holder",
    "interrupted",
    "is_live",
    "judges_of",
    "list_runs",
    "load_spent",
    "log_files",
    "log_only",
    "measured_saves",
    "name_compilers",
    "new_folder",
    "newest_run",
    "notifying",
    "of_step",
    "outcome",
    "parse_limit",
    "part_logs",
    "print_to",
    "process_state",
    "read_beat",
    "read_ledger",
    "read_limits",
    "read_manifest",
    "read_own_recipe",
    "record_end",
    "require_trackers",
    "sampled",
    "saves_of",
    "silence",
    "standings",
    "step_values",
    "stop_early",
    "stretches",
    "sums",
    "tell_gates",
    "too_late",
    "tracking",
    "wait_for_compilers",
]
