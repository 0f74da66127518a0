"""FSDP2 over a model: ranks as a mesh, blocks and root sharded, full tensors written into shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from .ranks import Ranks

BUCKET_BYTES = 256 << 20


def make_mesh(ranks: Ranks, shard: str) -> DeviceMesh | None:
    """Return FSDP2's mesh (ranks,). Where nothing is sharded there is none: FSDP2 would cost the host more than it gives."""
    if ranks.world == 1 or shard == "none":
        return None
    return init_device_mesh(ranks.device.type, (ranks.world,), mesh_dim_names=("shards",))


@torch.no_grad()
def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Add up the gradients of ranks that hold all parameters each, in place, some hundred MB at a time.

    What had no part in a rank's loss counts as zero: all ranks must send the same.
    """
    gradients: list[Tensor] = []
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradients.append(parameter.grad)
    buckets: list[list[Tensor]] = []
    room = 0
    for gradient in gradients:
        # One collective for each parameter would be bound by latency, one for all would need a second copy of all gradients.
        if not buckets or room < gradient.nbytes or gradient.dtype != buckets[-1][0].dtype:
            buckets.append([])
            room = BUCKET_BYTES
        buckets[-1].append(gradient)
        room -= gradient.nbytes
    for bucket in buckets:
        flat = _flatten_dense_tensors(bucket)
        dist.all_reduce(flat)
        torch._foreach_copy_(bucket, _unflatten_dense_tensors(flat, bucket))


def shard_model(
    root: nn.Module, blocks: Sequence[nn.Module], mesh: DeviceMesh, *, shard: str, compute: torch.dtype, reduce: torch.dtype,
    cast_inputs: bool = True, root_compute: torch.dtype | None = None,
) -> None:  # fmt: skip
    """Apply `fully_shard` to every block and to the root; gradients are summed over ranks.

    Args:
        root: changed in place.
        blocks: of it, each gathered by itself.
        mesh: the ranks.
        shard: 'full', or 'optimizer' to keep blocks gathered from the forward to the backward pass.
        compute: dtype of the parameters while a module computes.
        reduce: dtype of gradients while they are summed.
        cast_inputs: what blocks are given is cast to `compute`; else it comes as it is to be computed with.
        root_compute: dtype of what the root holds itself; None: `compute`.
    """
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=reduce, cast_forward_inputs=cast_inputs)
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=shard != "optimizer")
    # What the root is given, factors of targets among it, is no activation: it keeps its dtype.
    policy = MixedPrecisionPolicy(param_dtype=root_compute or compute, reduce_dtype=reduce, cast_forward_inputs=False)
    fully_shard(root, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            # Sums, not means: by how many targets the step's loss is divided is known only after the last micro-batch.
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)


def reshard(root: nn.Module) -> None:
    """Drop what a forward pass left gathered: it is in the products' dtype, not the weights' own, and does not follow them."""
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def materialise(network: nn.Module, device: torch.device) -> None:
    """Give all that is on 'meta' memory on the device, uninitialised; what is tied stays tied."""
    plain: list[tuple[nn.Module, str, nn.Parameter]] = []
    for module in network.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and not isinstance(parameter, DTensor):
                plain.append((module, name, parameter))
                module._parameters[name] = None  # `to_empty` would give each of its places another
    network.to_empty(device=device)
    made: dict[int, nn.Parameter] = {}
    for module, name, old in plain:
        if id(old) not in made:
            made[id(old)] = nn.Parameter(torch.empty_like(old, device=device), requires_grad=old.requires_grad)
        module._parameters[name] = made[id(old)]


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
            # As FSDP2 deals rows out: the same number to each rank until none are left.
            start = rows * mesh.get_local_rank(dim)
            full = full[start : start + target.size(0)]
    target.copy_(full)
