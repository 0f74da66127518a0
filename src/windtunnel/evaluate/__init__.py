"""What a model is worth: bits per byte, exact match on held-out problems, samples. torch is imported on use."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .by_step import STEP_COLUMNS, LossByStep
    from .export import Exported, export_run
    from .loss import Measure, Validation, bits_per_byte, validation_loss
    from .match import ExactMatch, exact_match, wilson
    from .puzzles import PuzzleReport, puzzle_report
    from .report import EvaluationReport, Sample, evaluate_run, load_run, samples
    from .text import Sampling, generate
    from .worth import WorthReport, weigh
    from .worth_measure import Measured, held_out_units, measure
    from .worth_plot import write_worth_plot
    from .worth_run import ASK_FROM, Comparison, compare_run, report_worth
    from .worth_text import worth_columns, worth_remarks, worth_rows
    from .worth_twins import Length, Member, worth_members

_LAZY = {
    "ASK_FROM": "worth_run",
    "Comparison": "worth_run",
    "EvaluationReport": "report",
    "ExactMatch": "match",
    "Exported": "export",
    "Length": "worth_twins",
    "LossByStep": "by_step",
    "Measure": "loss",
    "Measured": "worth_measure",
    "Member": "worth_twins",
    "PuzzleReport": "puzzles",
    "STEP_COLUMNS": "by_step",
    "Sample": "report",
    "Sampling": "text",
    "Validation": "loss",
    "WorthReport": "worth",
    "bits_per_byte": "loss",
    "compare_run": "worth_run",
    "evaluate_run": "report",
    "exact_match": "match",
    "export_run": "export",
    "generate": "text",
    "held_out_units": "worth_measure",
    "load_run": "report",
    "measure": "worth_measure",
    "puzzle_report": "puzzles",
    "report_worth": "worth_run",
    "samples": "report",
    "validation_loss": "loss",
    "weigh": "worth",
    "wilson": "match",
    "worth_columns": "worth_text",
    "worth_members": "worth_twins",
    "worth_remarks": "worth_text",
    "worth_rows": "worth_text",
    "write_worth_plot": "worth_plot",
}

__all__ = [
    "ASK_FROM",
    "STEP_COLUMNS",
    "Comparison",
    "EvaluationReport",
    "ExactMatch",
    "Exported",
    "Length",
    "LossByStep",
    "Measure",
    "Measured",
    "Member",
    "PuzzleReport",
    "Sample",
    "Sampling",
    "Validation",
    "WorthReport",
    "bits_per_byte",
    "compare_run",
    "evaluate_run",
    "exact_match",
    "export_run",
    "generate",
    "held_out_units",
    "load_run",
    "measure",
    "puzzle_report",
    "report_worth",
    "samples",
    "validation_loss",
    "weigh",
    "wilson",
    "worth_columns",
    "worth_members",
    "worth_remarks",
    "worth_rows",
    "write_worth_plot",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(name)
