"""What a model is worth: bits per byte, exact match on held-out problems, samples. torch is imported on use."""

from typing import TYPE_CHECKING

from windtunnel import lazy

if TYPE_CHECKING:
    from .account import Trade, run_account
    from .action_report import (
        CLASS_COLUMNS,
        ActionReport,
        action_rows,
        baseline_rows,
        class_rows,
        confusion_columns,
        confusion_rows,
        prediction_columns,
        prediction_rows,
    )
    from .actions import Reading
    from .answers import (
        Answer,
        Answered,
        Completion,
        Question,
        Questions,
        complete_by,
        generate_answers,
        greedy_jobs,
        held_out_questions,
    )
    from .attempts import Drawing, attempt_rows
    from .backtest import BacktestReport, run_backtest
    from .backtest_files import write_backtest
    from .backtest_text import backtest_remarks, backtest_rows
    from .comparison import weigh
    from .comparison_plot import write_comparison_plot
    from .comparison_run import ASK_FROM, Comparison, compare_run, report_comparison
    from .comparison_text import comparison_columns, comparison_remarks, comparison_rows
    from .equity import Figures, figures
    from .flop_matched import Length, Member, flop_matched_members
    from .gates import judge_evaluation
    from .held_out import Measured, measure
    from .judge import Judge, Judging
    from .kernel_questions import group_of, spread
    from .loss import STEP_COLUMNS, Validation, validation_loss
    from .match import exact_match, wilson
    from .new_theses import predict_file
    from .optimize import Candidate, Optimized, Sampling, ask, optimize_module, read_candidates
    from .paired import Paired
    from .predictions import predict
    from .prices import Prices, read_prices
    from .report import EvaluationReport, Sample, evaluate_folder, evaluate_run, samples
    from .signals import Signals, read_signals
    from .subject import Subject
    from .tuned import Exam, Examine, Untuned, perplexity

__all__ = [
    "ASK_FROM",
    "CLASS_COLUMNS",
    "STEP_COLUMNS",
    "ActionReport",
    "Answer",
    "Answered",
    "BacktestReport",
    "Candidate",
    "Comparison",
    "Completion",
    "Drawing",
    "EvaluationReport",
    "Exam",
    "Examine",
    "Figures",
    "Judge",
    "Judging",
    "Length",
    "Measured",
    "Member",
    "Optimized",
    "Paired",
    "Prices",
    "Question",
    "Questions",
    "Reading",
    "Sample",
    "Sampling",
    "Signals",
    "Subject",
    "Trade",
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
    "judge_evaluation",
    "measure",
    "optimize_module",
    "perplexity",
    "predict",
    "predict_file",
    "prediction_columns",
    "prediction_rows",
    "read_candidates",
    "read_prices",
    "read_signals",
    "report_comparison",
    "run_account",
    "run_backtest",
    "samples",
    "spread",
    "validation_loss",
    "weigh",
    "wilson",
    "write_backtest",
    "write_comparison_plot",
]

__getattr__ = lazy(__name__)
