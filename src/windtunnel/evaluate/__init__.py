"""What a model is worth: bits per byte, exact match on held-out problems, samples. torch is imported on use."""

from typing import TYPE_CHECKING

from windtunnel import lazy

if TYPE_CHECKING:
    from .account import Account, Trade, run_account
    from .action_plot import write_action_plot
    from .action_report import (
        CLASS_COLUMNS,
        ActionReport,
        action_rows,
        baseline_rows,
        class_rows,
        confusion_columns,
        confusion_rows,
        latency_of,
        prediction_columns,
        prediction_rows,
        report_actions,
    )
    from .actions import Reading, read_action
    from .answers import (
        Answer,
        Answered,
        Completion,
        Judge,
        Judging,
        Question,
        Questions,
        complete_by,
        generate_answers,
        greedy_jobs,
        held_out_questions,
    )
    from .attempts import Attempts, Drawing, attempt_rows
    from .backtest import BacktestReport, run_backtest
    from .backtest_files import write_backtest
    from .backtest_text import backtest_remarks, backtest_rows
    from .comparison import ComparisonReport, weigh
    from .comparison_plot import write_comparison_plot
    from .comparison_run import ASK_FROM, Comparison, compare_run, report_comparison
    from .comparison_text import comparison_columns, comparison_remarks, comparison_rows
    from .equity import Figures, figures
    from .flop_matched import Length, Member, flop_matched_members
    from .held_out import Measured, held_out_units, measure
    from .kernel_questions import group_of, spread
    from .loss import STEP_COLUMNS, LossByStep, Validation, validation_loss
    from .match import ExactMatch, exact_match, wilson
    from .new_theses import FilePredictions, predict_file
    from .optimize import Candidate, Optimized, Sampling, ask, optimize_module, read_candidates
    from .paired import Gain, Paired
    from .predictions import Prediction, PredictionLog, predict, write_predictions
    from .prices import Prices, read_prices
    from .puzzles import PuzzleReport, puzzle_report
    from .report import EvaluationReport, Sample, evaluate_folder, evaluate_run, judge_evaluation, samples
    from .signals import DIRECTIONS, Signal, Signals, read_signals
    from .subject import Subject
    from .tuned import Exam, Examine, TunedEvaluation, Untuned, perplexity

__all__ = [
    "ASK_FROM",
    "CLASS_COLUMNS",
    "DIRECTIONS",
    "STEP_COLUMNS",
    "Account",
    "ActionReport",
    "Answer",
    "Answered",
    "Attempts",
    "BacktestReport",
    "Candidate",
    "Comparison",
    "ComparisonReport",
    "Completion",
    "Drawing",
    "EvaluationReport",
    "ExactMatch",
    "Exam",
    "Examine",
    "Figures",
    "FilePredictions",
    "Gain",
    "Judge",
    "Judging",
    "Length",
    "LossByStep",
    "Measured",
    "Member",
    "Optimized",
    "Paired",
    "Prediction",
    "PredictionLog",
    "Prices",
    "PuzzleReport",
    "Question",
    "Questions",
    "Reading",
    "Sample",
    "Sampling",
    "Signal",
    "Signals",
    "Subject",
    "Trade",
    "TunedEvaluation",
    "Untuned",
    "Validation",
    "action_rows",
    "ask",
    "attempt_rows",
    "backtest_remarks",
    "backtest_rows",
    "baseline_rows",
    "class_rows",
    "compare_run",
    "comparison_columns",
    "comparison_remarks",
    "comparison_rows",
    "complete_by",
    "confusion_columns",
    "confusion_rows",
    "evaluate_folder",
    "evaluate_run",
    "exact_match",
    "figures",
    "flop_matched_members",
    "generate_answers",
    "greedy_jobs",
    "group_of",
    "held_out_questions",
    "held_out_units",
    "judge_evaluation",
    "latency_of",
    "measure",
    "optimize_module",
    "perplexity",
    "predict",
    "predict_file",
    "prediction_columns",
    "prediction_rows",
    "puzzle_report",
    "read_action",
    "read_candidates",
    "read_prices",
    "read_signals",
    "report_actions",
    "report_comparison",
    "run_account",
    "run_backtest",
    "samples",
    "spread",
    "validation_loss",
    "weigh",
    "wilson",
    "write_action_plot",
    "write_backtest",
    "write_comparison_plot",
    "write_predictions",
]

__getattr__ = lazy(__name__)
