"""The training loop, its optimizer and its precision. torch is imported on use."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .causal import (
        CausalJob,
        build_causal,
        hub_config,
        hub_weights,
        job_state,
        linear_cross_entropy,
        restore_job,
        whole_tensor,
        whole_weights,
    )
    from .checks_hf import random_batch, small_job, vocabulary_of
    from .children import child_context
    from .optimizer import MuonAdamW, Scalars
    from .ranks import Ranks, join_ranks
    from .schedule import learning_rate_scale
    from .session import train
    from .trace import TraceRequest, run_trace
    from .trial import TrialRequest, run_trial

_LAZY = {"train": "session", "MuonAdamW": "optimizer", "Scalars": "optimizer"}
_LAZY |= {"TrialRequest": "trial", "run_trial": "trial"}

_LAZY |= {"TraceRequest": "trace", "run_trace": "trace"}

_LAZY |= {"CausalJob": "causal", "build_causal": "causal", "linear_cross_entropy": "causal"}

_LAZY |= {
    "child_context": "children",
    "hub_config": "causal",
    "hub_weights": "causal",
    "whole_tensor": "causal",
    "whole_weights": "causal",
}

_LAZY |= dict.fromkeys(("random_batch", "small_job", "vocabulary_of"), "checks_hf")

_LAZY |= {"job_state": "causal", "restore_job": "causal"}

_LAZY |= {"Ranks": "ranks", "join_ranks": "ranks", "learning_rate_scale": "schedule"}

__all__ = [
    "CausalJob",
    "MuonAdamW",
    "Ranks",
    "Scalars",
    "TraceRequest",
    "TrialRequest",
    "build_causal",
    "child_context",
    "hub_config",
    "hub_weights",
    "job_state",
    "join_ranks",
    "learning_rate_scale",
    "linear_cross_entropy",
    "random_batch",
    "restore_job",
    "run_trace",
    "run_trial",
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
