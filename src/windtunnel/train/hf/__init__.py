"""Hugging Face causal language models: built, trained and exported, on one GPU or sharded by FSDP2."""

from .build import build_hf, build_hf_engine
from .engine import HFEngine, HFJob
from .loss import ObjectiveBatch, TokenObjective, linear_cross_entropy
from .weights import (
    adapter_settings,
    adapter_tensors,
    hub_buckets,
    hub_config,
    hub_weights,
    load_weights,
    plain_model,
    whole_tensor,
    whole_weights,
    write_plain,
)

__all__ = [
    "HFEngine",
    "HFJob",
    "ObjectiveBatch",
    "TokenObjective",
    "adapter_settings",
    "adapter_tensors",
    "build_hf",
    "build_hf_engine",
    "hub_buckets",
    "hub_config",
    "hub_weights",
    "linear_cross_entropy",
    "load_weights",
    "plain_model",
    "whole_tensor",
    "whole_weights",
    "write_plain",
]
