"""Two ranks with FSDP2 make the same steps as one, however the model is sharded."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from hf_models import MODELS, batch, drawn, job_of, packed, weights_of
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from windtunnel.model import NewRows
from windtunnel.recipe import LoRA
from windtunnel.train import HFJob
from windtunnel.train.ranks import join_ranks

NEW = NewRows(249, 256, ((0, 249),), ((), *((1, i + 2) for i in range(6))))
CASES = {
    "full": {"config": "qwen2", "shard": "full"},
    "optimizer": {"config": "qwen2", "shard": "optimizer"},
    "none": {"config": "qwen2", "shard": "none"},
    "experts": {"config": "qwen3_moe", "shard": "full", "recompute": "block"},
    "lora": {"config": "llama", "shard": "full", "lora": LoRA(rank=3)},
    "new rows": {"config": "llama", "shard": "full", "lora": LoRA(rank=3), "new": NEW},
    "grown": {"config": "qwen2", "shard": "full", "new": NEW, "rows": 249},
    "grown lora": {"config": "llama", "lora": LoRA(rank=3), "new": NEW, "rows": 249},
    "documents": {"config": "qwen2", "shard": "full", "recompute": "block"},
    "fp8": {"config": "llama", "shard": "full", "lora": LoRA(rank=3), "weights": "fp8", "compute": torch.bfloat16},
    "fp8 in fp32": {"config": "llama", "shard": "full", "lora": LoRA(rank=3), "weights": "fp8"},
    "fp8 experts": {"config": "deepseek_v3", "shard": "full", "lora": LoRA(rank=3), "weights": "fp8"},
}


LENGTHS = ((9, 14, 5), (30,), (2, 2), (1, 1, 20))
"""Of packed documents, row by row: ranks have different numbers of targets."""

pytestmark = pytest.mark.end_to_end


def steps(job: HFJob, rank: int, world: int, documents: bool) -> list[torch.Tensor]:
    """Three steps of four rows; each rank has its share, in two micro-batches."""
    x, y = batch(4)
    rows = range(rank, 4, world)
    parts: list = [(x[i : i + 1], y[i : i + 1]) for i in rows]  # type: ignore[type-arg]
    if documents:
        parts = [packed([drawn(LENGTHS[i], seed=i)], 32) for i in rows]
    return [job.step(parts, y.numel(), 3e-3) for _ in range(3)]


def outcome(name: str, rank: int, world: int, ranks: object = None) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    chosen = dict(CASES[name])
    config, rows = chosen.pop("config"), chosen.pop("rows", None)
    more = {} if ranks is None else {"ranks": ranks}
    with tempfile.TemporaryDirectory() as folder:
        if rows is not None:  # a model of fewer rows than the tokenizer has ids
            torch.manual_seed(0)
            fewer = AutoConfig.for_model(**(MODELS[config] | {"vocab_size": rows}))
            save_file(dict(AutoModelForCausalLM.from_config(fewer).named_parameters()), Path(folder) / "model.safetensors")
            more["folder"] = Path(folder)
        with job_of(config, **more, **chosen) as job:
            return torch.stack(steps(job, rank, world, name == "documents")), weights_of(job)


def child(rank: int, world: int, port: int, out: str) -> None:
    import os

    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with join_ranks("cpu") as ranks:
        results = {name: outcome(name, rank, world, ranks) for name in CASES}
    torch.save(results, Path(out) / f"{rank}.pt")


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, tuple[torch.Tensor, dict[str, torch.Tensor]]]]:
    """What each of two processes got."""
    import socket

    out = tmp_path_factory.mktemp("ranks")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    sys.path.insert(0, str(Path(__file__).parent))
    mp.spawn(child, (2, port, str(out)), nprocs=2)
    return [torch.load(out / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_make_the_steps_of_one(name: str, together: list) -> None:  # type: ignore[type-arg]
    sums, weights = outcome(name, 0, 1)
    tight = CASES[name].get("compute") is None
    for rank in range(2):
        theirs, held = together[rank][name]
        torch.testing.assert_close(theirs, sums, rtol=1e-5 if tight else 5e-2, atol=1e-6)
        for key, weight in weights.items():
            loose = dict(rtol=1e-4, atol=2e-5) if tight else dict(rtol=0.2, atol=1e-2)
            torch.testing.assert_close(held[key].float(), weight.float(), **loose, msg=lambda m, k=key: f"{k}: {m}")
