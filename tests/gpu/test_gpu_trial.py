# mypy: disable-error-code="no-untyped-def, no-untyped-call, arg-type, operator, misc"
"""Trials on a real GPU: a trial takes what a run takes, and memory that runs out ends it with a word."""

from pathlib import Path

import pytest
import torch

from windtunnel.launch import try_steps
from windtunnel.plan import Layout
from windtunnel.recipe import load_recipe

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"), pytest.mark.timeout(300),
]  # fmt: skip
KEYS = [
    "model.depth=8", "model.sequence=1024", "data.corpus.documents=20000", "budget.hours=null", "budget.steps=8",
    "stages.pretrain.micro_batch=32", "stages.pretrain.batch_tokens=65536", "stages.pretrain.precision=bf16",
    "stages.pretrain.deterministic=false", "stages.pretrain.validation_tokens=32768",
]  # fmt: skip


def test_a_trial_reserves_the_memory_that_a_run_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess
    import sys

    from windtunnel.run import MetricsReader, RunFolder

    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path / "cache"))
    command = [sys.executable, "-m", "windtunnel", "train", "charlm", "--root", str(tmp_path / "runs"), "--yes", "--gpus", "1"]
    for key in KEYS:
        command += ["--set", key]
    subprocess.run(command, check=True, capture_output=True, timeout=200)
    (folder,) = (path for path in (tmp_path / "runs").iterdir() if path.is_dir())
    run = RunFolder.open(folder)
    with MetricsReader(run.metrics_path) as reader:
        held = max(point.value for point in reader.series("memory_gib"))
    free, total = torch.cuda.mem_get_info()
    trial = try_steps(
        load_recipe("charlm", KEYS), Layout(1, 32, 2, 1024, "bf16", True, "cuda"), vocab=run.manifest["plan"]["vocab"]
    )
    assert trial.failure is None
    assert trial.reserved_gib == pytest.approx(held, rel=0.01, abs=0.05)
    assert trial.allocation_retries == 0
    assert trial.context_gib is not None
    others = (total - free) / 2**30  # what this process and others hold on the GPU counts as outside the allocator too
    assert 0.2 < trial.context_gib - others < 3
    assert trial.phases["forward"].peak_gib <= trial.allocated_gib + 0.01


@pytest.mark.parametrize("ranks", [1, 2])
def test_memory_that_runs_out_is_said(ranks: int) -> None:
    if torch.cuda.device_count() < ranks:
        pytest.skip(f"needs {ranks} GPUs")
    most = int(torch.cuda.get_device_properties(0).total_memory / 2**30)
    # Far more tokens at once than fit: a layer keeps tens of kilobytes of each.
    recipe = load_recipe("charlm", [*KEYS, f"stages.pretrain.micro_batch={64 * most}"])
    trial = try_steps(recipe, Layout(ranks, 64 * most, 1, 1024, "bf16", True, "cuda"), vocab=18, timeout=120)
    assert trial.out_of_memory
    assert trial.failure is not None
    assert "stopped" not in trial.failure
