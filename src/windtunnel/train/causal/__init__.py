"""Fine-tuning of Hugging Face causal language models: all weights or LoRA, on one GPU or sharded by FSDP2."""

from .build import build_causal
from .job import CausalJob, Parameters
from .loss import linear_cross_entropy
from .state import job_state, restore_job
from .whole import hub_config, hub_weights, whole_tensor, whole_weights

__all__ = [
    "CausalJob",
    "Parameters",
    "build_causal",
    "hub_config",
    "hub_weights",
    "job_state",
    "linear_cross_entropy",
    "restore_job",
    "whole_tensor",
    "whole_weights",
]
