"""A GPT whose weights and gradients are sharded over the ranks by FSDP2: whole at a time is a part of a block, or a table.

Attention, MLP and every table are gathered for themselves when they are used, and once more in the backward pass. What
the head and the scalars of the residual stream hold is the root's: fp32, as they are computed with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from windtunnel.model import GPT, GPTShape, empty_model

from .ranks import Ranks
from .shards import fill, make_mesh, materialise, reshard, shard_model


def build_sharded(shape: GPTShape, ranks: Ranks, compute: torch.dtype, seed: int) -> GPT:
    """Return a GPT with the initial weights of a whole one, of which each rank holds its rows in fp32."""
    model = empty_model(shape, "meta", compute)
    mesh = make_mesh(ranks, "full")
    assert mesh is not None
    parts = [*model.value_tables.values(), model.embedding, *model.parts()]
    shard_model(
        model, parts, mesh, shard="full", compute=compute, reduce=torch.float32, cast_inputs=False, root_compute=torch.float32
    )
    materialise(model, ranks.device)
    model.cos, model.sin = model.rotary(shape, ranks.device)
    # Else a table, which is given tokens alone, would keep its gradient whole until the backward pass has ended.
    model.after_lookups = torch.zeros((), device=ranks.device, requires_grad=True)
    initialise_shards(model, seed)
    return model


def initialise_shards(model: GPT, seed: int) -> None:
    """Set the initial weights of a whole model; one parameter at a time is whole."""
    reshard(model)
    model.initialise(seed, _write_rows)


def whole_weights(model: GPT) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight, gathered from the ranks; all of them must iterate to the end together."""
    reshard(model)
    for name, parameter in model.named_parameters():
        yield name, parameter.full_tensor() if isinstance(parameter, DTensor) else parameter.detach()


@torch.no_grad()
def _write_rows(parameter: nn.Parameter, draw: Callable[[Tensor], object]) -> None:
    whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
    draw(whole)
    fill(parameter, whole)
