"""Weights from the learners to the engines, by files or directly, from all ranks together; and how old an engine's may be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from windtunnel.train import HFJob, adapter_settings, adapter_tensors, hub_buckets, hub_config, hub_weights, nothing

from .canary import TOLERANCE, Canary, make_canary
from .errors import StaleWeights
from .send import Held, WeightSender
from .snapshot import Publisher


def publish_weights(
    job: HFJob, publisher: Publisher | None, version: int, *, dtype: torch.dtype, canary: Tensor,
    tolerance: tuple[float, float] | None = None,
) -> Path | None:  # fmt: skip
    """Score a canary, gather the weights block by block, merge adapters, and publish. All ranks must call it together.

    Args:
        job: the learner, on this rank.
        publisher: of the first rank; None on the others.
        version: updates that the weights have behind them; it must grow.
        dtype: of the parameters, as the engines hold them and as the learner computes.
        canary: tokens (B, T) int64 that the learner scores and every engine must score alike.
        tolerance: see `make_canary`; None: of small random models.

    Returns:
        The version's folder; None on ranks other than the first.

    Raises:
        RuntimeError: on every rank, when the first one could not write; names the cause.
    """
    assert (publisher is not None) == job.ranks.first
    scored = make_canary(job, canary, tolerance or TOLERANCE[dtype])
    return _published(job, publisher, version, hub_weights(job, dtype), dtype, scored)


def publish_base(job: HFJob, publisher: Publisher | None, *, dtype: torch.dtype) -> Path | None:
    """Publish the weights beside which adapters stand, as version 0, without a canary; see `publish_weights`."""
    return _published(job, publisher, 0, hub_weights(job, dtype, adapters=False), dtype, None)


def _published(
    job: HFJob, publisher: Publisher | None, version: int, weights: Iterator[tuple[str, Tensor]], dtype: torch.dtype,
    scored: Canary | None,
) -> Path | None:  # fmt: skip
    path, cause = None, None
    if publisher is None:
        _drain(weights)
    else:
        try:
            path = publisher.publish(version, weights, hub_config(job, dtype), scored).path
        except (OSError, ValueError) as error:
            cause = f"{type(error).__name__}: {error}"
            _drain(weights)  # the other ranks are in the middle of gathering: leaving now would hang them
    # All ranks end with the same error: the others would wait for the next collective.
    cause = job.ranks.share(cause)
    if cause:
        raise RuntimeError(f"version {version} of the weights was not published: {cause}")
    return path


@dataclass(frozen=True)
class Offer:
    """A version that engines are to receive; see `InferenceEngine.receive`.

    Attributes:
        version: updates behind it. config: of config.json. canary: as JSON.
        adapter: of adapter_config.json, where adapters alone are sent; None: all weights are.
        base: the folder with the weights beside them.
    """

    version: int
    config: dict[str, Any]
    canary: dict[str, Any]
    adapter: dict[str, Any] | None = None
    base: Path | None = None

    @property
    def tokens(self) -> int:
        """Return the tokens of the canary's longest sequence."""
        return max(map(len, self.canary["tokens"]))


def offer_weights(
    job: HFJob, version: int, *, dtype: torch.dtype, canary: Tensor, base: Path | None = None,
    tolerance: tuple[float, float] | None = None,
) -> Offer:  # fmt: skip
    """Score a canary and say what `send_weights` will send. All ranks must call it together; see `publish_weights`.

    `base`: of `publish_base`, where adapters alone will be sent.
    """
    scored = make_canary(job, canary, tolerance or TOLERANCE[dtype]).as_json()
    return Offer(version, hub_config(job, dtype), scored, None if base is None else adapter_settings(job), base)


def send_weights(
    job: HFJob, sender: WeightSender | None, offer: Offer, *, dtype: torch.dtype, check: Callable[[], None] = nothing,
    held: Held | None = None,
) -> None:  # fmt: skip
    """Gather what was offered block by block, and send it to this rank's engines. All ranks must call it together.

    No rank ever has more than a block and two buckets whole. An engine that fails does not keep other ranks from gathering.

    Args:
        job: the learner, on this rank.
        sender: to this rank's engines, which are receiving; None where it has none.
        offer: what they receive.
        dtype: of the parameters, as the engines hold them.
        check: raises what makes it useless to go on.
        held: see `WeightSender.send`.

    Raises:
        EngineFailed: of this rank, when all ranks have gathered everything.
    """
    buckets: Iterable[dict[str, Tensor]]
    if offer.adapter is None:
        buckets = hub_buckets(job, dtype, job.ranks.device, everywhere=True)
    else:
        # Adapters are small: one bucket has them all.
        buckets = [adapter_tensors(job, dtype, job.ranks.device)]
    if sender is None:
        _drain(buckets)
    else:
        sender.send(offer.version, buckets, check, held)


def require_fresh(found: int, learner: int) -> None:
    """Require that an engine has the learner's version of the weights. Raises StaleWeights."""
    if found != learner:
        raise StaleWeights(f"the engine has version {found} of the weights, the learner version {learner}")


def _drain(weights: Iterable[object]) -> None:
    for _ in weights:
        pass
