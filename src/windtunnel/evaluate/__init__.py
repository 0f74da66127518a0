"""What a model is worth: bits per byte, exact match on held-out problems, samples. torch is imported on use."""

from typing import TYPE_CHECKING

from windtunnel import lazy

if TYPE_CHECKING:
    from .by_step import STEP_COLUMNS, LossByStep
    from .comparison import ComparisonReport, weigh
    from .comparison_plot import write_comparison_plot
    from .comparison_run import ASK_FROM, Comparison, compare_run, report_comparison
    from .comparison_text import comparison_columns, comparison_remarks, comparison_rows
    from .flop_matched import Length, Member, flop_matched_members
    from .held_out import Measured, held_out_units, measure
    from .loss import Measure, Validation, bits_per_byte, validation_loss
    from .match import ExactMatch, exact_match, wilson
    from .puzzles import PuzzleReport, puzzle_report
    from .report import EvaluationReport, Sample, evaluate_run, judge_evaluation, samples

__all__ = [
    "ASK_FROM",
    "STEP_COLUMNS",
    "Comparison",
    "ComparisonReport",
    "EvaluationReport",
    "ExactMatch",
    "Length",
    "LossByStep",
    "Measure",
    "Measured",
    "Member",
    "PuzzleReport",
    "Sample",
    "Validation",
    "bits_per_byte",
    "compare_run",
    "comparison_columns",
    "comparison_remarks",
    "comparison_rows",
    "evaluate_run",
    "exact_match",
    "flop_matched_members",
    "held_out_units",
    "judge_evaluation",
    "measure",
    "puzzle_report",
    "report_comparison",
    "samples",
    "validation_loss",
    "weigh",
    "wilson",
    "write_comparison_plot",
]

__getattr__ = lazy(__name__)
