"""FSDP2 over a model: ranks as a mesh, blocks and root sharded, full tensors written into shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from ..ranks import Ranks


@dataclass(frozen=True)
class Sharded:
    """How parameters lie over ranks.

    Attributes:
        mesh: (ranks,) if they are sharded, (ranks, 1) if every rank holds them all.
        group: the ranks that share one copy; None if each holds it all.
        owns_process_group: whether the process group was made here, for a single process.
    """

    mesh: DeviceMesh
    group: dist.ProcessGroup | None
    owns_process_group: bool


def make_mesh(ranks: Ranks, shard: str) -> Sharded:
    """The mesh for FSDP2, with a process group of one where there is none."""
    owns = not dist.is_initialized()
    if owns:
        backend = "cpu:gloo,cuda:nccl" if ranks.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    kind = ranks.device.type
    if shard == "none" and ranks.world > 1:
        return Sharded(init_device_mesh(kind, (ranks.world, 1), mesh_dim_names=("copies", "shards")), None, owns)
    mesh = init_device_mesh(kind, (ranks.world,), mesh_dim_names=("shards",))
    return Sharded(mesh, mesh.get_group() if ranks.world > 1 else None, owns)


def shard_model(
    root: nn.Module, blocks: Sequence[nn.Module], sharded: Sharded, *, shard: str, compute: torch.dtype, reduce: torch.dtype
) -> list[OneBuffer]:
    """`fully_shard` on every block and on the root; gradients are summed over ranks.

    Args:
        compute: dtype of the parameters while a module computes. reduce: of gradients while they are summed.

    Returns:
        Of one rank, what gives each module's gradients their memory; else nothing.
    """
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=reduce)
    alone = sharded.mesh.size() == 1  # then gathering is a copy, and dropping it saves memory whatever `shard` says
    for block in blocks:
        fully_shard(block, mesh=sharded.mesh, mp_policy=policy, reshard_after_forward=alone or shard != "optimizer")
    fully_shard(root, mesh=sharded.mesh, mp_policy=policy, reshard_after_forward=False)
    modules = [module for module in root.modules() if isinstance(module, FSDPModule)]
    if alone:  # nothing is divided by one rank, and a factor would cost a copy of every gradient
        buffers = [OneBuffer() for _ in modules]
        for module, buffer in zip(modules, buffers, strict=True):
            module.set_custom_reduce_scatter(buffer)  # type: ignore[arg-type]
        return buffers
    for module in modules:
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)
    return []


def use_one_stream(root: nn.Module) -> None:
    """Of a root on one rank, after its first forward pass: FSDP2's copies of gradients into the stream that computes.

    On a stream of their own they would overlap with nothing, but their memory, all gradients', could not be
    used for anything else, and `OneBuffer` would have to give out two buffers. FSDP2 has no switch for it; where
    its inside has changed nothing is done.
    """
    state = root._get_fsdp_state() if isinstance(root, FSDPModule) else None
    context = getattr(state, "_comm_ctx", None)
    if hasattr(context, "reduce_scatter_stream") and torch.cuda.is_available():
        context.reduce_scatter_stream = torch.cuda.current_stream()  # type: ignore[union-attr]


@torch.no_grad()
def fill(parameter: Tensor, full: Tensor) -> None:
    """Write a full tensor, the same on every rank, into a parameter: each rank keeps its rows."""
    if not isinstance(parameter, DTensor):
        parameter.copy_(full)
        return
    mesh, target = parameter.device_mesh, parameter.to_local()
    for dim, placement in enumerate(parameter.placements):
        if isinstance(placement, Shard):
            assert placement.dim == 0
            rows = -(-full.size(0) // mesh.size(dim))
            start = rows * mesh.get_local_rank(dim)
            full = full[start : start + target.size(0)]
    target.copy_(full)


class OneBuffer:
    """What `FSDPModule.set_custom_reduce_scatter` takes, for one module on one rank.

    FSDP2 casts a module's gradients into a buffer, and on one rank copies that into a second one, which it
    then keeps as the gradients. Of the root, whose embedding and head are reduced when every other gradient
    is held, that would be the peak of a step that computes again what it can: 4 bytes a parameter more of
    both, and twice in one piece. Here the second buffer is the first. It is only where both are used on one
    stream: what is freed on one could be written again there while the other still reads it.
    """

    def __init__(self) -> None:
        self._waiting: tuple[Tensor, int] | None = None

    @property
    def paired(self) -> bool:
        """Whether every buffer that was given out for gradients was asked for a second time, as their result."""
        return self._waiting is None

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A buffer of `size` elements, uninitialised; of each two calls the second gets what the first got."""
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            buffer = torch.empty(*size, dtype=dtype, device=device)
            self._waiting = buffer, stream
            return buffer
        buffer, there = waiting
        same = there == stream and buffer.shape == torch.Size(size) and buffer.dtype == dtype
        return buffer if same else torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> None:
        """Ranks that are not alone reduce; this is for those that are."""
        raise AssertionError("one rank has nobody to reduce gradients with")
