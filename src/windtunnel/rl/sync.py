"""Weights from the learners to the engines: published by all ranks together, and how old an engine's may be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from windtunnel.train import HFJob, hub_config, hub_weights

from .canary import make_canary
from .errors import StaleWeights
from .snapshot import Publisher


def publish_weights(
    job: HFJob, publisher: Publisher | None, version: int, *, dtype: torch.dtype, canary: Tensor, compute: torch.dtype
) -> Path | None:
    """Score a canary, gather the weights block by block, merge adapters, and publish. All ranks must call it together.

    Args:
        job: the learner, on this rank.
        publisher: of the first rank; None on the others.
        version: updates that the weights have behind them; it must grow.
        dtype: of the parameters, as the engines hold them.
        canary: tokens (B, T) int64 that the learner scores and every engine must score alike.
        compute: what the learner computes in.

    Returns:
        The version's folder; None on ranks other than the first.

    Raises:
        RuntimeError: on every rank, when the first one could not write; names the cause.
    """
    assert (publisher is not None) == job.ranks.first
    lesser = min(dtype, compute, key=lambda one: torch.finfo(one).bits)
    scored = make_canary(job, canary, lesser)
    weights = hub_weights(job, dtype)
    path, cause = None, None
    if publisher is None:
        _drain(weights)
    else:
        try:
            path = publisher.publish(version, weights, hub_config(job, dtype), scored).path
        except (OSError, ValueError) as error:
            cause = f"{type(error).__name__}: {error}"
            _drain(weights)  # the other ranks are in the middle of gathering: leaving now would hang them
    cause = job.ranks.share(cause)
    if cause:
        raise RuntimeError(f"version {version} of the weights was not published: {cause}")
    return path


def require_fresh(found: int, learner: int, allowed: int = 0) -> None:
    """Require that an engine's weights are at most `allowed` versions behind the learner's.

    Raises:
        StaleWeights: they are older, or not yet published.
    """
    if not learner - allowed <= found <= learner:
        limit = f", at most {allowed} behind is allowed" if allowed else ""
        raise StaleWeights(f"the engine has version {found} of the weights, the learner version {learner}{limit}")


def _drain(weights: Iterator[tuple[str, Tensor]]) -> None:
    for _ in weights:
        pass
