"""Two ranks publish together what one publishes alone, and a disk that fails is an error on both, not a hang."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import torch
from learners import CANARY, learner, publish, train
from waiting import HANG

from windtunnel.rl import InferenceEngine, Publisher, newest_snapshot, publish_weights
from windtunnel.train import Ranks, child_context, join_ranks

pytestmark = pytest.mark.end_to_end


def _share(ranks: Ranks, folder: Path) -> None:
    """What each rank does: two versions of two learners, then a version that cannot be written."""
    for name, adapter in (("full", False), ("adapter", True)):
        publisher = Publisher(folder / name) if ranks.first else None
        with learner(ranks, adapter=adapter) as job:
            for version in (1, 2):
                train(job)
                path = publish_weights(job, publisher, version, dtype=torch.float32, canary=CANARY)
                assert (path is None) != ranks.first
            with pytest.raises(RuntimeError, match="version 2 of the weights was not published: ValueError: version 2 after"):
                publish_weights(job, publisher, 2, dtype=torch.float32, canary=CANARY)
            train(job, 1)  # and the ranks are still in step


def _rank(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with join_ranks("cpu") as ranks:
        _share(ranks, Path(folder))
    (Path(folder) / f"done-{rank}").touch()


def test_two_ranks_publish_what_one_does(tmp_path: Path) -> None:
    context = child_context("windtunnel.rl.engine")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    ranks = [context.Process(target=_rank, args=(rank, port, str(tmp_path))) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(HANG)
        process.kill()
    assert (tmp_path / "done-0").exists()
    assert (tmp_path / "done-1").exists()
    for name, adapter in (("full", False), ("adapter", True)):
        together = newest_snapshot(tmp_path / name)
        assert together is not None
        with learner(adapter=adapter) as job:
            train(job, 4)
            alone = publish(job, Publisher(tmp_path / f"{name}-alone"), 1)
        engines = InferenceEngine(torch.float32), InferenceEngine(torch.float32)
        receipt = engines[0].load(together, 2)
        engines[1].load(alone, 1)
        assert receipt.canary is not None
        assert receipt.canary.largest < 1e-5
        scores = [engine.score(CANARY).log_probabilities for engine in engines]
        torch.testing.assert_close(scores[0], scores[1], rtol=0, atol=2e-3)
