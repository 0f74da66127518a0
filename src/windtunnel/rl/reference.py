"""A frozen reference policy: the trained weights as the stage began, put in the place of the present ones while it scores."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from windtunnel.checkpoint import Slice
from windtunnel.train import HFJob, local_part, row_offset


class Reference:
    """Copies of what is trained, of this rank's shards where it is sharded; frozen weights are shared with the policy.

    Its state is among the optimizer's in checkpoints: a run that goes on has the reference that it began with.
    """

    def __init__(self, job: HFJob) -> None:
        self._job = job
        # On the GPU beside what is trained: under an adapter that is next to nothing.
        self._held = {name: torch.empty_like(local_part(p)) for name, p in job.trained.items()}

    @torch.no_grad()
    def take(self) -> None:
        """Make the policy as it is now the reference."""
        for name, parameter in self._job.trained.items():
            self._held[name].copy_(local_part(parameter))

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the job compute as the reference does; nothing must be updated meanwhile."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def states(self) -> dict[str, Tensor | Slice]:
        """Return the tensors of a checkpoint, by the names that an engine's state has for an optimizer's."""
        found: dict[str, Tensor | Slice] = {}
        for name, parameter in self._job.trained.items():
            held = self._held[name]
            whole = tuple(parameter.shape)
            # As the optimizer's states are: a checkpoint of other ranks finds its rows.
            shard = Slice(held.view(-1), whole, row_offset(parameter)) if self._job.sharded else held
            found[f"optimizer.reference.{name}"] = shard
        return found

    @torch.no_grad()
    def _swap(self) -> None:
        # Gathered copies would still hold the other weights.
        self._job.reshard()
        for name, parameter in self._job.trained.items():
            own, other = local_part(parameter), self._held[name]
            kept = own.clone()
            own.copy_(other)
            other.copy_(kept)
