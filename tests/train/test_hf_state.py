"""An engine gone on with from a checkpoint makes the steps of one that was never left, bit for bit, whatever it holds and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hf_models import MODELS, engine_on, job_of, weights_of

from windtunnel.checkpoint import Checkpoint, CheckpointStore, Facts, SpoiledWeights
from windtunnel.recipe import LoRA, UserError
from windtunnel.train.checkpoints import make_saver, restore_engine
from windtunnel.train.hf import HFEngine, HFJob

WAYS: dict[str, dict[str, Any]] = {
    "every weight": {},
    "int8 moments": {"states": "int8"},
    "bf16 weights": {"master": False, "compute": torch.bfloat16},
    "bf16 moments": {"states": "bf16", "compute": torch.bfloat16},
    "adapter": {"lora": LoRA(rank=3), "compute": torch.bfloat16},
    "adapter on fp8": {"lora": LoRA(rank=3), "weights": "fp8", "compute": torch.bfloat16, "states": "int8"},
}


def steps(engine: HFEngine, first: int, last: int) -> list[tuple[float, float]]:
    """Each step has its own batch."""
    results = [engine.step(step + 1, 0.5).result() for step in range(first, last)]
    return [(result.loss, result.gradient_norm) for result in results]


def save(engine: HFEngine, folder: Path, step: int) -> Checkpoint:
    saver = make_saver(engine, CheckpointStore(folder), engine.job.ranks)
    saver.save(Facts(step, engine.state_dict().facts))
    assert saver.wait() is not None
    return CheckpointStore(folder).at(step)


def load(job: HFJob, folder: Path, step: int) -> HFEngine:
    engine = engine_on(job)
    restore_engine(engine, CheckpointStore(folder).at(step))
    return engine


@pytest.mark.parametrize("way", WAYS)
def test_an_engine_goes_on_as_if_it_had_never_been_left(way: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    with job_of("qwen2", **WAYS[way]) as job:
        engine = engine_on(job)
        steps(engine, 0, 3)
        checkpoint = save(engine, tmp_path, 3)
        wanted, weights = steps(engine, 3, 6), weights_of(job)
        trained = set(job.trained)
    torch.manual_seed(2)
    with job_of("qwen2", **WAYS[way]) as job:
        assert steps(load(job, tmp_path, 3), 3, 6) == wanted
        assert all(torch.equal(weights[name], tensor) for name, tensor in weights_of(job).items())
    assert checkpoint.weights().keys() == trained, "what is frozen takes no room"


def test_starting_over_is_as_never_having_begun() -> None:
    with job_of("qwen2") as job:
        engine = engine_on(job)
        first = steps(engine, 0, 3)
        engine.start_over(0)
        assert steps(engine, 0, 3) == first


def test_a_save_is_a_copy(tmp_path: Path) -> None:
    with job_of("llama") as job:
        engine = engine_on(job)
        steps(engine, 0, 1)
        saver = make_saver(engine, CheckpointStore(tmp_path), job.ranks)
        before = {name: tensor.clone() for name, tensor in weights_of(job).items()}
        saver.save(Facts(1, engine.state_dict().facts))
        steps(engine, 1, 3)
        saver.wait()
        saved = CheckpointStore(tmp_path).at(1).weights()
        assert all(torch.equal(before[name], array) for name, array in saved.items())


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    with job_of("llama") as job:
        engine = engine_on(job)
        with torch.no_grad():
            next(iter(job.trained.values())).view(-1)[3] = float("nan")
        saver = make_saver(engine, CheckpointStore(tmp_path), job.ranks)
        saver.save(Facts(1, engine.state_dict().facts))
        with pytest.raises(SpoiledWeights, match="after step 1"):
            saver.wait()
    assert CheckpointStore(tmp_path).all() == []


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    with job_of("llama") as job:
        engine = engine_on(job)
        steps(engine, 0, 1)
        save(engine, tmp_path, 1)
    wider = MODELS["llama"] | {"intermediate_size": 160}
    for config, chosen, words in (
        ("qwen3", {}, "missing|only the checkpoint has"),
        ("llama", {"lora": LoRA(rank=2)}, "only the checkpoint has"),
        (wider, {}, "of shape"),
    ):
        with job_of(config, **chosen) as job, pytest.raises(UserError, match=words):  # type: ignore[arg-type]
            load(job, tmp_path, 1)
