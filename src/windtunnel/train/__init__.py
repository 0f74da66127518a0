"""Training: one loop, its callbacks, and the engines that it drives. torch is imported on use."""

from typing import TYPE_CHECKING

from windtunnel import lazy

if TYPE_CHECKING:
    from .checkpoints import restore_engine
    from .checks_hf import random_batch, small_engine, small_job, vocabulary_of
    from .children import child_context
    from .gates import gate_series, judge_gates
    from .hf import HFJob, build_hf, hub_config, hub_weights, linear_cross_entropy, whole_tensor, whole_weights
    from .loop import out_of_memory
    from .optimizer import MuonAdamW, Scalars
    from .ranks import Ranks, join_ranks
    from .schedule import learning_rate_scale
    from .session import train
    from .trace import TraceRequest, run_trace
    from .trial import TrialRequest, run_trial

__all__ = [
    "HFJob",
    "MuonAdamW",
    "Ranks",
    "Scalars",
    "TraceRequest",
    "TrialRequest",
    "build_hf",
    "child_context",
    "gate_series",
    "hub_config",
    "hub_weights",
    "join_ranks",
    "judge_gates",
    "learning_rate_scale",
    "linear_cross_entropy",
    "out_of_memory",
    "random_batch",
    "restore_engine",
    "run_trace",
    "run_trial",
    "small_engine",
    "small_job",
    "train",
    "vocabulary_of",
    "whole_tensor",
    "whole_weights",
]

__getattr__ = lazy(__name__)
