# mypy: disable-error-code="no-untyped-def, no-untyped-call, arg-type, operator, misc"
"""Fine-tuning on two GPUs through NCCL: two ranks make the steps of one, however the model is sharded."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from windtunnel.recipe import LoRA
from windtunnel.train import build_hf
from windtunnel.train.ranks import Ranks, join_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

VOCAB, SEQUENCE, ROWS, STEPS = 512, 32, 8, 4
CONFIG: dict[str, Any] = {
    "model_type": "qwen3", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 64, "vocab_size": VOCAB, "max_position_embeddings": 1024, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "full": {"shard": "full"},
    "recompute": {"shard": "full", "recompute": "block"},
    "optimizer": {"shard": "optimizer"},
    "none": {"shard": "none"},
    "recorded": {"shard": "none", "recorded": True, "compile": True, "attention": "varlen"},
    "lora": {"shard": "full", "lora": LoRA(rank=4)},
}


def steps(name: str, ranks: Ranks) -> torch.Tensor:
    """(STEPS, 3): sums of losses, targets and squared gradient norms; each rank has its rows, in micro-batches of two."""
    plain: dict[str, Any] = {
        "lora": None, "weights": "bf16", "master": True, "states": "fp32", "recompute": "none", "compile": False,
        "sequence": SEQUENCE, "seed": 7,
    }  # fmt: skip
    job = build_hf(CONFIG, ranks=ranks, **(plain | CASES[name]))
    tokens = torch.randint(0, VOCAB, (ROWS, SEQUENCE + 1), generator=torch.Generator().manual_seed(0)).to(ranks.device)
    rows = [tokens[i : i + 2] for i in range(2 * ranks.rank, ROWS, 2 * ranks.world)]
    sums = [job.step([(x[:, :-1], x[:, 1:]) for x in rows], ROWS * SEQUENCE, 1e-3) for _ in range(STEPS)]
    return torch.stack(sums).cpu()


def child(rank: int, device: str, port: int, out: str) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with join_ranks(device) as ranks:
        results = {name: steps(name, ranks) for name in CASES}
    torch.save(results, Path(out) / f"{rank}.pt")


def run_together(out: Path, device: str) -> list[dict[str, torch.Tensor]]:
    """What each of two processes got."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    sys.path.insert(0, str(Path(__file__).parent))
    mp.spawn(child, (device, port, str(out)), nprocs=2)
    return [torch.load(out / f"{rank}.pt") for rank in range(2)]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, torch.Tensor]]:
    return run_together(tmp_path_factory.mktemp("ranks"), "cuda")


def assert_same(name: str, alone: torch.Tensor, theirs: torch.Tensor) -> None:
    """Products in bf16 are those of the same rows; only sums over ranks and micro-batches are taken in another order."""
    assert torch.equal(theirs[:, 1], alone[:, 1]), name
    torch.testing.assert_close(theirs[:, 0], alone[:, 0], rtol=2e-3, atol=0)
    torch.testing.assert_close(theirs[:, 2], alone[:, 2], rtol=3e-2, atol=0)
    assert alone[-1, 0] < 0.98 * alone[0, 0]


@pytest.mark.parametrize("name", CASES)
def test_two_gpus_make_the_steps_of_one(name: str, together: list[dict[str, torch.Tensor]]) -> None:
    alone = steps(name, Ranks(0, 1, torch.device("cuda", 0), None))
    for theirs in together:
        assert_same(name, alone, theirs[name])
