"""Plans: recipe x rig -> layout, memory, time, money and disk, or a refusal with what would work. No torch."""

from typing import TYPE_CHECKING

from windtunnel import lazy
from windtunnel.recipe import Layout

from .alternatives import cheapest, holds
from .calibration import CALIBRATION, CALIBRATION_OFF, observe, shipped_constants, user_path
from .constants import Constants, GPTConstants, HFConstants, load_constants, load_hf_constants
from .interruptions import Interrupted, best_interval, under_interruptions
from .job import JOB_COLUMNS, Job, Step, plan_job
from .ladder import COLUMNS, Ladder, Rung, climb, ladder_remarks, ladder_rows
from .opinion import Opinion, second_opinion
from .own_engine import other_engine, why_untrainable, without_effect
from .plan import make_plan, refuse, resolve
from .rollout import require_divided
from .side_by_side import RIG_COLUMNS, SideBySide, compare_rigs
from .stages import (
    STAGE_COLUMNS,
    PlannedStage,
    StagedPlan,
    climb_stages,
    depth_warnings,
    gate_remarks,
    plan_stages,
    plan_whole,
    stage_remarks,
    stage_rows,
)
from .text import OF_STAGE, count_text, hours_text, lines
from .types import Alternative, Moment, Option, Plan, Role

if TYPE_CHECKING:
    from .plots import check_plot_path, cost_svg, memory_svg, step_svg, write_plot
    from .scaling import BEYOND, Bought, Law, TrainedPoint, fit_law, what_budget_buys

__all__ = [
    "BEYOND",
    "CALIBRATION",
    "CALIBRATION_OFF",
    "COLUMNS",
    "JOB_COLUMNS",
    "OF_STAGE",
    "RIG_COLUMNS",
    "STAGE_COLUMNS",
    "Alternative",
    "Bought",
    "Constants",
    "GPTConstants",
    "HFConstants",
    "Interrupted",
    "Job",
    "Ladder",
    "Law",
    "Layout",
    "Moment",
    "Opinion",
    "Option",
    "Plan",
    "PlannedStage",
    "Role",
    "Rung",
    "SideBySide",
    "StagedPlan",
    "Step",
    "TrainedPoint",
    "best_interval",
    "cheapest",
    "check_plot_path",
    "climb",
    "climb_stages",
    "compare_rigs",
    "cost_svg",
    "count_text",
    "depth_warnings",
    "fit_law",
    "gate_remarks",
    "holds",
    "hours_text",
    "ladder_remarks",
    "ladder_rows",
    "lines",
    "load_constants",
    "load_hf_constants",
    "make_plan",
    "memory_svg",
    "observe",
    "other_engine",
    "plan_job",
    "plan_stages",
    "plan_whole",
    "refuse",
    "require_divided",
    "resolve",
    "second_opinion",
    "shipped_constants",
    "stage_remarks",
    "stage_rows",
    "step_svg",
    "under_interruptions",
    "user_path",
    "what_budget_buys",
    "why_untrainable",
    "without_effect",
    "write_plot",
]

__getattr__ = lazy(__name__)
