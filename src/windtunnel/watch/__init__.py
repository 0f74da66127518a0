"""Watching: a terminal view of a run, from inside or outside its process, and the readiness report. No torch."""

from typing import TYPE_CHECKING, Any

from .live import JsonLines, PlainLines, TerminalView, finite
from .snapshot import Snapshot

if TYPE_CHECKING:
    from .follow import read_snapshot, watch_run
    from .report import write_report
    from .report_model import CheckRow, Curve, Memory, PlanRow, Report, Sample

__all__ = [
    "CheckRow",
    "Curve",
    "JsonLines",
    "Memory",
    "PlainLines",
    "PlanRow",
    "Report",
    "Sample",
    "Snapshot",
    "TerminalView",
    "finite",
    "read_snapshot",
    "watch_run",
    "write_report",
]

_LAZY = {
    "read_snapshot": "follow",
    "watch_run": "follow",
    "write_report": "report",
    **dict.fromkeys(("CheckRow", "Curve", "Memory", "PlanRow", "Report", "Sample"), "report_model"),
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
