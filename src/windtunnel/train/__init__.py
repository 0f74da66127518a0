"""Training: one loop, its callbacks, and the engines that it drives. torch is imported on use."""

from typing import TYPE_CHECKING

from windtunnel import lazy

if TYPE_CHECKING:
    from .checkpoints import restore_engine
    from .children import child_context
    from .engine import COMPUTE, Engine, EngineState, Feed, Mark, Moment, Parameters, Pending, local_part, nothing, row_offset
    from .failures import Abandoned, PeerLost, lighter_run
    from .gates import gate_series, judge_gates
    from .held_out_answers import ByCopy, HeldOutAnswers, Writer, training_undisturbed
    from .hf import (
        HFEngine,
        HFJob,
        ObjectiveBatch,
        adapter_settings,
        adapter_tensors,
        build_hf,
        build_hf_engine,
        hub_buckets,
        hub_config,
        hub_weights,
        linear_cross_entropy,
        plain_model,
        whole_tensor,
        whole_weights,
        write_plain,
    )
    from .methods import Ask, Method, Work
    from .optimizer import MuonAdamW, Scalars
    from .ranks import RANKS_TIMEOUT, Ranks, join_ranks
    from .scale_hf import random_batch, small_engine, small_job, vocabulary_of
    from .schedule import learning_rate_scale
    from .session import train
    from .telemetry import View
    from .trace import TraceRequest, run_trace
    from .trial import TRIAL_PROGRESS, TrialRequest, TrialSteps, compile_step, random_feed, run_trial

__all__ = [
    "COMPUTE",
    "RANKS_TIMEOUT",
    "TRIAL_PROGRESS",
    "Abandoned",
    "Ask",
    "ByCopy",
    "Engine",
    "EngineState",
    "Feed",
    "HFEngine",
    "HFJob",
    "HeldOutAnswers",
    "Mark",
    "Method",
    "Moment",
    "MuonAdamW",
    "ObjectiveBatch",
    "Parameters",
    "PeerLost",
    "Pending",
    "Ranks",
    "Scalars",
    "TraceRequest",
    "TrialRequest",
    "TrialSteps",
    "View",
    "Work",
    "Writer",
    "adapter_settings",
    "adapter_tensors",
    "build_hf",
    "build_hf_engine",
    "child_context",
    "compile_step",
    "gate_series",
    "hub_buckets",
    "hub_config",
    "hub_weights",
    "join_ranks",
    "judge_gates",
    "learning_rate_scale",
    "lighter_run",
    "linear_cross_entropy",
    "local_part",
    "nothing",
    "plain_model",
    "random_batch",
    "random_feed",
    "restore_engine",
    "row_offset",
    "run_trace",
    "run_trial",
    "small_engine",
    "small_job",
    "train",
    "training_undisturbed",
    "vocabulary_of",
    "whole_tensor",
    "whole_weights",
    "write_plain",
]

__getattr__ = lazy(__name__)
