# mypy: disable-error-code="no-untyped-def, no-untyped-call, arg-type, operator, misc"
"""Puzzles on a GPU: batches arrive whole, and hard 9x9 training runs as the recipe ships."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from windtunnel.data import BatchLoader, ValidationBatches, prepare
from windtunnel.evaluate import evaluate_run
from windtunnel.recipe import load_recipe
from windtunnel.run import MetricsReader, RunFolder, of_step

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(500)]
SMALL = ["data.corpus.puzzles=300", "data.validation=0.2"]


def test_batches_on_the_gpu_are_those_of_the_cpu(tmp_path: Path) -> None:
    data = prepare(load_recipe("trm-sudoku", SMALL), tmp_path)
    seen = {}
    for device in ("cpu", "cuda"):
        with BatchLoader(
            data.train, sequence=81, micro_batch=50, accumulation=2, rank=0, world=1, seed=4, device=device
        ) as loader:
            seen[device] = [[t.cpu() for t in loader.next_batch()] for _ in range(12)]
        seen[device] += [[t.cpu() for t in batch] for batch in ValidationBatches(data.validation, sequence=81, micro_batch=16)]
    for ours, theirs in zip(seen["cpu"], seen["cuda"], strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])
        assert ((theirs[1] >= 1) | (theirs[1] == -1)).all()


def test_hard_puzzles_are_trained_on_and_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path / "cache"))
    sets = [p for key in [*SMALL, "budget.hours=null", "budget.steps=120"] for p in ("--set", key)]
    command = [sys.executable, "-m", "windtunnel", "train", "trm-sudoku", "--root", str(tmp_path / "runs"), "--yes", *sets]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    with MetricsReader(RunFolder.open(run).metrics_path) as reader:
        losses = [point.value for point in reader.series("loss")]
        first = [point.value for point in reader.series(of_step("loss", 0))]
    assert first[0] > 2.2  # ln 10 of a model that knows nothing: after its first supervision step it is another
    assert losses[-1] < 0.8 * losses[0]
    report = evaluate_run(run)
    assert report.puzzles is not None
    assert len(report.puzzles.solved[0].exact) == 32  # twice what is trained
    assert report.puzzles.halting is not None
