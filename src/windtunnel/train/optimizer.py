"""Muon and AdamW over a GPT's parameters, their states and averages sharded over ranks; see `groups` and `group_shards`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from windtunnel.checkpoint import Slice
from windtunnel.model import GPT, HyperParameters

from .groups import AdamW, Group, MatrixGroup, Named, Scalars, Update, VectorGroup
from .muon import adamw_update, muon_update

if TYPE_CHECKING:
    from .group_shards import MatrixShards, VectorShards

__all__ = ["MuonAdamW", "Scalars"]

CLIP_EPSILON = 1e-6
# An average of the first updates must not be made of initial weights: its decay begins at 1/10 and grows to its own.
AVERAGE_WARMUP = 10


class MuonAdamW:
    """The optimizer of a GPT. After construction parameters and gradients live in its buffers, unless they are sharded.

    Args:
        model: on its final device, weights the same on every rank.
        rates: peak learning rates (`windtunnel.model.derive`).
        compiled: compile the updates; on a GPU, take kernels that make them.
        clip: gradients are scaled down to this norm over all parameters and ranks; None: never.
        ema: decay of a running average of the weights, taken after every update; None: none is kept. After t
            updates the decay is at most (1 + t) / (10 + t), so that a short run's average is not its beginning.
        sharded: FSDP2 has spread weights and gradients over the ranks; no averages are then kept.
    """

    def __init__(
        self, model: GPT, rates: HyperParameters, *, rank: int = 0, world: int = 1, compiled: bool = False,
        clip: float | None = None, ema: float | None = None, sharded: bool = False,
    ) -> None:  # fmt: skip
        device = model.head.weight.device
        assert ema is None or not sharded
        self._device = device
        muon, adamw = _updates(device, compiled)
        self._model, self._clip, self._ema = model, clip, ema
        self.rank, self.world = rank, world
        self.groups: list[Group] = []
        matrix: type[MatrixGroup | MatrixShards] = MatrixGroup
        vector: type[VectorGroup | VectorShards] = VectorGroup
        if sharded:
            from .group_shards import MatrixShards, VectorShards  # imports DTensor, which takes seconds

            matrix, vector = MatrixShards, VectorShards
        # Matrices of one shape are updated together: Muon's products are then batched, and few in number.
        matrices = [(n, p) for n, p in model.named_parameters() if n.startswith("blocks.")]
        for shape in sorted({tuple(p.shape) for _, p in matrices}):
            named = [(n, p) for n, p in matrices if tuple(p.shape) == shape]
            self.groups.append(matrix(named, shape, rates.matrix_lr.value, rank, world, device, muon))
        for named, rate, betas, decay in _vectors(model, rates):
            if named:
                self.groups.append(vector(named, AdamW(rate, betas, decay, adamw), rank, world, device))
        covered = {n for g in self.groups for n, _ in g.named}
        # A new kind of parameter would else stay at its initial values without a word.
        missing = {n for n, _ in model.named_parameters()} - covered
        assert not missing, f"parameters without an optimizer: {missing}"
        if ema is not None:
            for group in self.groups:
                group.start_average()

    @torch.no_grad()
    def step(self, scalars: Scalars, before_update: Callable[[], None] | None = None) -> Tensor:
        """Reduce gradients over ranks, clip, update, average, gather weights, clear gradients. The host never waits.

        Args:
            scalars: of this update; see `windtunnel.train.schedule`.
            before_update: called when the first gradients are complete, before any weight changes.

        Returns:
            This rank's part of the squared gradient norm before clipping (0-d): sum it over ranks, then take the root.
        """
        # All are begun before the first is waited for, so that the network works while groups are updated.
        pending = [group.reduce() for group in self.groups]
        square = torch.zeros((), device=self._device)
        # Clipping needs the norm of everything before anything moves. Without it each group is updated as soon as its own
        # gradients have come, and is sent out while the next one is updated.
        if self._clip is not None:
            square = self._clipped(pending, self._clip)
            pending = [None] * len(pending)
        gathers = []
        for group, handle in zip(self.groups, pending, strict=True):
            if handle is not None:
                handle.wait()
            if before_update is not None and group is self.groups[0]:
                before_update()
            if self._clip is None:
                square += group.square()
            group.update(scalars)
            gathers.append(group.gather())
        if self._ema is not None:
            decay = min(self._ema, (1 + self.adamw_steps) / (AVERAGE_WARMUP + self.adamw_steps))
            for group in self.groups:
                group.average_in(decay)
        for group, handle in zip(self.groups, gathers, strict=True):
            if handle is not None:
                handle.wait()
            group.clear()
        self._model.weights_changed()
        return square

    def _clipped(self, pending: list[Any], limit: float) -> Tensor:
        """Scale the owned gradients so that the norm of all is at most `limit`; return this rank's squared norm before it."""
        square = torch.zeros((), device=self._device)
        for group, handle in zip(self.groups, pending, strict=True):
            if handle is not None:
                handle.wait()
            square += group.square()
        whole = square.clone()
        if self.world > 1:
            dist.all_reduce(whole)
        scale = (limit / (whole.sqrt() + CLIP_EPSILON)).clamp(max=1.0)
        for group in self.groups:
            group.scale(scale)
        return square

    @property
    def averages(self) -> bool:
        """Return whether a running average of the weights is kept."""
        return self._ema is not None

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the model's weights with their running averages, on every rank; the same again undoes it exactly."""
        for group in self.groups:
            group.swap()
        self._gather()

    def loaded(self) -> None:
        """Tell that the state was filled with another one: where averages are kept only this rank's raw weights were."""
        if self.averages:
            self._gather()

    def _gather(self) -> None:
        """Send the owned weights to all ranks."""
        for handle in [group.gather() for group in self.groups]:
            if handle is not None:
                handle.wait()
        self._model.weights_changed()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Let the model's weights be their averages meanwhile, where these are kept. Every rank has to enter it."""
        if self.averages:
            self.swap()
        try:
            yield
        finally:
            if self.averages:
                self.swap()

    @torch.no_grad()
    def start_over(self) -> None:
        """Empty the states, as before the first update of the weights as they are now."""
        for group in self.groups:
            for _, part in group.states():
                part.local.zero_()
        self.adamw_steps = 0
        if self.averages:
            for group in self.groups:
                group.start_average()

    def state_dict(self) -> dict[str, Tensor | Slice]:
        """Return weights and states by the names of `EngineState`, in the memory that they live in.

        'model.P' is the average of P where averages are kept; its raw weights are then the state 'raw'.
        """
        tensors: dict[str, Tensor | Slice] = {}
        for group in self.groups:
            tensors |= dict(group.weight_state())
            tensors |= dict(group.states())
        return tensors

    @property
    def adamw_steps(self) -> int:
        """Return the updates done, for bias correction."""
        return next(group.steps for group in self.groups if group.counts)

    @adamw_steps.setter
    def adamw_steps(self, value: int) -> None:
        for group in self.groups:
            if group.counts:
                group.steps = value


def _updates(device: torch.device, compiled: bool) -> tuple[Update, Update]:
    """Return Muon's and AdamW's updates."""
    if not compiled:
        return muon_update, adamw_update
    if device.type == "cuda":
        # torch.compile would make kernels as fast as these, but every start would import it and trace each size of parameters.
        from . import triton_updates

        return triton_updates.muon_update, triton_updates.adamw_update
    muon, adamw = (torch.compile(update, dynamic=False, fullgraph=True) for update in (muon_update, adamw_update))
    return muon, adamw


def _vectors(model: GPT, rates: HyperParameters) -> Iterator[tuple[Named, float, tuple[float, float], float]]:
    """Yield (parameters, peak rate, betas, weight decay) of what AdamW updates; nanochat's tuned values, July 2026."""
    parts = (
        (("head.",), rates.unembedding_lr.value, (0.8, 0.96), 0.01),
        (("embedding.", "positions"), rates.embedding_lr.value, (0.8, 0.995), 0.001),
        (("value_tables.",), 0.5 * rates.embedding_lr.value, (0.8, 0.995), 0.01),
        (("residual_scale",), 0.01 * rates.scalar_lr.value, (0.8, 0.95), 0.05),
        (("embedding_mix",), rates.scalar_lr.value, (0.96, 0.95), 0.0),
        (("halt_",), rates.unembedding_lr.value, (0.8, 0.96), 0.0),  # a head of one output
    )
    for prefixes, rate, betas, decay in parts:
        yield [(n, p) for n, p in model.named_parameters() if n.startswith(prefixes)], rate, betas, decay
