"""What a checkpoint of fine-tuning holds, and back: trained weights, moments, and the numbers that rounding draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from windtunnel.recipe import UserError
from windtunnel.run import Checkpoint

from .job import CausalJob
from .shards import fill
from .whole import whole_tensor

Arrays = dict[str, "np.ndarray[Any, Any]"]
RANDOM = "random"
"""In the place of a parameter's name: the state of a rank's generators."""


@torch.no_grad()
def job_state(job: CausalJob) -> tuple[Arrays | None, Arrays, dict[str, Any]]:
    """Weights, optimizer states and counts as `CheckpointWriter.start` takes them; copies. All ranks must call it together.

    Only what is trained is among the weights: the rest is where the model came from. bf16 is kept as fp32, which
    holds every one of its numbers.
    """
    weights: Arrays = {}
    for name, parameter in _trained(job).items():
        whole = whole_tensor(parameter)
        if job.ranks.first:
            weights[name] = _array(whole)
    states: Arrays = {}
    for key, tensor in job.optimizer.states():
        name, part = key.rsplit(".", 1)
        states[f"{name}|{_part(job, part)}|{_extent(_trained(job)[name], tensor, part)}"] = _array(tensor)
    if not _holds_shards(job):
        states = states if job.ranks.first else {}  # every rank has the same
    for kind, generator in _generators(job).items():
        states[f"{RANDOM}|{_mine(job, kind)}|0:{generator.numel()}"] = generator.numpy().copy()
    coded = any(part.startswith("first_scale") for _, part, _ in (key.split("|") for key in states))
    return (
        weights if job.ranks.first else None,
        states,
        {"updates": job.optimizer.steps, "coded": coded, "ranks": job.ranks.world},
    )


@torch.no_grad()
def restore_job(job: CausalJob, checkpoint: Checkpoint) -> None:
    """Load what `job_state` gave into a job built by the same recipe, of any number of ranks.

    With as many ranks as before the steps that follow are the same to a bit.

    Raises:
        UserError: the checkpoint is damaged or of another model, or its int8 moments are of another number of ranks.
    """
    state, weights = checkpoint.state, checkpoint.weights()
    if state.get("coded") and state.get("ranks") != job.ranks.world:
        raise UserError(
            f"checkpoint {checkpoint.path}: its int8 moments lie on {state.get('ranks')} ranks, here are {job.ranks.world}",
            "go on with as many GPUs, or begin with other states: --set stages.rl.states=bf16 (stages.sft.states)",
        )
    trained = _trained(job)
    if weights.keys() != trained.keys():
        name = min(weights.keys() ^ trained.keys())
        who = "the checkpoint" if name in weights else "the model that is trained"
        raise UserError(f"checkpoint {checkpoint.path}: only {who} has {name}", "go on with the recipe that it was saved by")
    for name, parameter in trained.items():
        array = weights[name]
        if array.shape != tuple(parameter.shape):
            found, wanted = list(array.shape), list(parameter.shape)
            raise UserError(f"checkpoint {checkpoint.path}: {name} is of shape {found}, expected {wanted}")
        fill(parameter, torch.from_numpy(array).to(parameter.device, parameter.dtype))
    for key, tensor in job.optimizer.states():
        name, part = key.rsplit(".", 1)
        start, stop = (int(x) for x in _extent(trained[name], tensor, part).split(":"))
        tensor.copy_(torch.from_numpy(checkpoint.optimizer_slice(name, _part(job, part), start, stop)))
    job.optimizer.steps = int(state["updates"])
    saved = {(name, part) for name, part, _ in checkpoint.optimizer_keys()}
    for kind, generator in _generators(job).items():
        if (RANDOM, _mine(job, kind)) in saved:  # another number of ranks draws other numbers whatever is done
            values = torch.from_numpy(checkpoint.optimizer_slice(RANDOM, _mine(job, kind), 0, generator.numel()))
            torch.set_rng_state(values) if kind == "cpu" else torch.cuda.set_rng_state(values, job.ranks.device)


def _trained(job: CausalJob) -> dict[str, Tensor]:
    return {name: p for name, p in job.network.model.named_parameters() if p.requires_grad}


def _holds_shards(job: CausalJob) -> bool:
    """Whether each rank has a part of its own, not a copy."""
    return any(_first_row(parameter)[1] for parameter in _trained(job).values())


def _first_row(parameter: Tensor) -> tuple[int, bool]:
    """This rank's first row of a parameter, and whether it is sharded."""
    if isinstance(parameter, DTensor):
        for dim, placement in enumerate(parameter.placements):
            ranks = parameter.device_mesh.size(dim)
            if isinstance(placement, Shard) and ranks > 1:
                rows = -(-parameter.size(0) // ranks)
                return min(parameter.size(0), rows * parameter.device_mesh.get_local_rank(dim)), True
    return 0, False


def _extent(parameter: Tensor, state: Tensor, part: str) -> str:
    """Where a state stands in the flattened parameter, 'start:stop'; scales of int8 codes stand by themselves."""
    row = parameter[0].numel() if parameter.dim() and parameter.size(0) else 1
    start = 0 if part.endswith("_scale") else _first_row(parameter)[0] * row
    return f"{start}:{start + state.numel()}"


def _part(job: CausalJob, part: str) -> str:
    """A state's name; scales are of this rank's blocks, so that they carry its number."""
    return _mine(job, part) if part.endswith("_scale") and _holds_shards(job) else part


def _mine(job: CausalJob, what: str) -> str:
    return f"{what} {job.ranks.rank} of {job.ranks.world}"


def _generators(job: CausalJob) -> dict[str, Tensor]:
    """States of the generators that steps draw from, uint8 on the host."""
    cuda = {"cuda": torch.cuda.get_rng_state(job.ranks.device)} if job.ranks.device.type == "cuda" else {}
    return {"cpu": torch.get_rng_state()} | cuda


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    exact = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    array: np.ndarray[Any, Any] = exact.to("cpu", copy=True).numpy()
    return array
