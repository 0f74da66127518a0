"""Watching: a terminal view of a run, from inside or outside its process, and the readiness report. No torch."""

from typing import TYPE_CHECKING

from windtunnel import lazy

from .live import JsonLines, PlainLines, TerminalView, finite, training_view
from .snapshot import Snapshot

if TYPE_CHECKING:
    from .compare import RunResult, Scored, different_keys, draw_comparison, read_result
    from .curves import Curve
    from .evaluated import Sample
    from .follow import read_snapshot, watch_run
    from .report import CheckRow, PlanRow, Report, write_report
    from .run_page import write_run_page
    from .supervision import SupervisionCurves, supervision_curves
    from .tails import follow_logs, last_lines
    from .web import serve_board

__all__ = [
    "CheckRow",
    "Curve",
    "JsonLines",
    "PlainLines",
    "PlanRow",
    "Report",
    "RunResult",
    "Sample",
    "Scored",
    "Snapshot",
    "SupervisionCurves",
    "TerminalView",
    "different_keys",
    "draw_comparison",
    "finite",
    "follow_logs",
    "last_lines",
    "read_result",
    "read_snapshot",
    "serve_board",
    "supervision_curves",
    "training_view",
    "watch_run",
    "write_report",
    "write_run_page",
]

__getattr__ = lazy(__name__)
