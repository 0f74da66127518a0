"""A job gone on with from a checkpoint makes the steps of one that was never left, bit for bit, whatever it holds and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from causal_models import MODELS, batch, job_of, weights_of

from windtunnel.recipe import LoRA, UserError
from windtunnel.run import Checkpoint, CheckpointStore, CheckpointWriter
from windtunnel.train import CausalJob, job_state, restore_job

WAYS: dict[str, dict[str, Any]] = {
    "every weight": {},
    "int8 moments": {"states": "int8"},
    "bf16 weights": {"master": False, "compute": torch.bfloat16},
    "bf16 moments": {"states": "bf16", "compute": torch.bfloat16},
    "adapter": {"lora": LoRA(rank=3), "compute": torch.bfloat16},
    "adapter on fp8": {"lora": LoRA(rank=3), "weights": "fp8", "compute": torch.bfloat16, "states": "int8"},
}


def steps(job: CausalJob, first: int, last: int) -> list[torch.Tensor]:
    """Each step has its own batch."""
    found = []
    for step in range(first, last):
        x, y = batch(2, seed=step)
        found.append(job.step([(x, y)], y.numel(), 1e-3))
    return found


def save(job: CausalJob, folder: Path, step: int) -> Checkpoint:
    weights, optimizer, state = job_state(job)
    writer = CheckpointWriter(CheckpointStore(folder))
    writer.start(step, weights, optimizer, state)
    assert writer.wait() is not None
    return CheckpointStore(folder).at(step)


@pytest.mark.parametrize("way", WAYS)
def test_a_job_goes_on_as_if_it_had_never_been_left(way: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    with job_of("qwen2", **WAYS[way]) as job:
        steps(job, 0, 3)
        checkpoint = save(job, tmp_path, 3)
        wanted, weights = steps(job, 3, 6), weights_of(job)
        trained = {name for name, p in job.network.model.named_parameters() if p.requires_grad}
    torch.manual_seed(2)
    with job_of("qwen2", **WAYS[way]) as job:
        restore_job(job, checkpoint)
        found = steps(job, 3, 6)
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
        assert all(torch.equal(weights[name], tensor) for name, tensor in weights_of(job).items())
    assert checkpoint.weights().keys() == trained, "what is frozen takes no room"


def test_a_save_is_a_copy(tmp_path: Path) -> None:
    with job_of("llama") as job:
        steps(job, 0, 1)
        weights, optimizer, _ = job_state(job)
        assert weights is not None
        before = {name: array.copy() for name, array in (weights | optimizer).items()}
        steps(job, 1, 3)
        assert all((before[name] == array).all() for name, array in (weights | optimizer).items())


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    with job_of("llama") as job:
        steps(job, 0, 1)
        checkpoint = save(job, tmp_path, 1)
    wider = MODELS["llama"] | {"intermediate_size": 160}
    for config, chosen, words in (
        ("qwen3", {}, "only the model that is trained has"),
        ("llama", {"lora": LoRA(rank=2)}, "has base_model|lora|only"),
        (wider, {}, "of shape"),
    ):
        with job_of(config, **chosen) as job, pytest.raises(UserError, match=words):  # type: ignore[arg-type]
            restore_job(job, checkpoint)


def test_int8_moments_of_other_ranks_are_refused_in_words(tmp_path: Path) -> None:
    with job_of("llama", states="int8") as job:
        steps(job, 0, 1)
        weights, optimizer, state = job_state(job)
        writer = CheckpointWriter(CheckpointStore(tmp_path))
        writer.start(1, weights, optimizer, state | {"ranks": 4})
        writer.wait()
        with pytest.raises(UserError, match="int8 moments lie on 4 ranks, here are 1"):
            restore_job(job, CheckpointStore(tmp_path).at(1))
