"""The training loop, its optimizer and its precision. torch is imported on use."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checks_hf import random_batch, small_engine, small_job, vocabulary_of
    from .children import child_context
    from .gates import gate_series, judge_gates
    from .hf import (
        HFJob,
        build_hf,
        hub_config,
        hub_weights,
        linear_cross_entropy,
        whole_tensor,
        whole_weights,
    )
    from .optimizer import MuonAdamW, Scalars
    from .ranks import Ranks, join_ranks
    from .saver import restore_engine
    from .schedule import learning_rate_scale
    from .session import train
    from .trace import TraceRequest, run_trace
    from .trial import TrialRequest, run_trial

_LAZY = {"train": "session", "MuonAdamW": "optimizer", "Scalars": "optimizer"}
_LAZY |= {"TrialRequest": "trial", "run_trial": "trial"}

_LAZY |= {"TraceRequest": "trace", "run_trace": "trace"}

_LAZY |= {"HFJob": "hf", "build_hf": "hf", "linear_cross_entropy": "hf"}

_LAZY |= {
    "child_context": "children",
    "hub_config": "hf",
    "hub_weights": "hf",
    "whole_tensor": "hf",
    "whole_weights": "hf",
}

_LAZY |= dict.fromkeys(("random_batch", "small_engine", "small_job", "vocabulary_of"), "checks_hf")

_LAZY |= {"restore_engine": "saver"}

_LAZY |= dict.fromkeys(("gate_series", "judge_gates"), "gates")

_LAZY |= {"Ranks": "ranks", "join_ranks": "ranks", "learning_rate_scale": "schedule"}

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


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(name)
