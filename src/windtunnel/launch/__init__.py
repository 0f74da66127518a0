"""Starting jobs: supervised, on this machine, in this process or in one a rank. torch is imported on use."""

from typing import TYPE_CHECKING

from windtunnel import lazy

if TYPE_CHECKING:
    from .beside import Beside, find_beside, train_beside
    from .compilers import Compilers
    from .forking import Forked, Forker
    from .local import mirror_again, train_run
    from .measuring import Calibration, calibrate, observe_run
    from .megatron import MegatronJob, render_job
    from .prepare import data_lines, look_before_training, prepare_run
    from .processes import Process, stop_with_parent
    from .ready import ReadyRanks
    from .restart import bring_job, stand_again
    from .stages import StageReport, run_stages
    from .stopping import Stopped, stop_run
    from .supervisor import supervise
    from .trace import trace_plan
    from .trainable import Options
    from .trial import Phase, Trial, try_steps

__all__ = [
    "Beside",
    "Calibration",
    "Compilers",
    "Forked",
    "Forker",
    "MegatronJob",
    "Options",
    "Phase",
    "Process",
    "ReadyRanks",
    "StageReport",
    "Stopped",
    "Trial",
    "bring_job",
    "calibrate",
    "data_lines",
    "find_beside",
    "look_before_training",
    "mirror_again",
    "observe_run",
    "prepare_run",
    "render_job",
    "run_stages",
    "stand_again",
    "stop_run",
    "stop_with_parent",
    "supervise",
    "trace_plan",
    "train_beside",
    "train_run",
    "try_steps",
]

__getattr__ = lazy(__name__)
