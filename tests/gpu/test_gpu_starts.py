"""Starts on a GPU: what is compiled ahead is what the first step needs, and changes nothing that is trained."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from windtunnel.launch.compilers import BACKWARD, FORWARD, LEAST_CORES, STEP, Compilers
from windtunnel.model import flash_kernels
from windtunnel.recipe import load_recipe
from windtunnel.rig import cpu_cores
from windtunnel.run import MetricsReader, wait_for_compilers

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"), pytest.mark.timeout(400),
]  # fmt: skip
# No scoring of held-out data before the end: it is compiled when it is due.
KEYS = [
    "model.depth=2", "model.aspect=128", "model.head_dim=64", "model.sequence=256", "data.corpus.documents=20000",
    "budget.hours=null", "budget.steps=4", "stages.pretrain.batch_tokens=16384", "stages.pretrain.validation_tokens=16384",
    "checkpoints.every=1000 hours",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches of compiled code in which nothing is."""
    for name in ("TRITON_CACHE_DIR", "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR", "WINDTUNNEL_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("WINDTUNNEL_COMPILERS", "[]")


def compiled(folder: Path) -> dict[str, list[str]]:
    """Kernels on disk: Triton's by name, FlashAttention-4's by pass."""
    triton = sorted(path.stem for path in (folder / "TRITON_CACHE_DIR").rglob("*.cubin"))
    flash = sorted(path.parent.name for path in (folder / "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR").rglob("*.o"))
    return {"triton": triton, "flash": flash}


def train(folder: Path, root: str, *, ready: str | None = None) -> list[float]:
    """Train four steps as a user does; the losses."""
    sets = [word for key in KEYS for word in ("--set", key)]
    environment = os.environ | ({} if ready is None else {"WINDTUNNEL_READY_RANKS": ready})
    environment.pop("WINDTUNNEL_COMPILERS")
    command = [sys.executable, "-m", "windtunnel", "train", "charlm", "--gpus", "1", "--yes", "--root", root, *sets]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [metrics] = (folder / root).glob("*/metrics.sqlite")
    assert "compiling ahead" not in metrics.with_name("output.log").read_text()
    with MetricsReader(metrics) as reader:
        return [point.value for point in reader.series("loss")]


def test_what_is_compiled_ahead_is_what_training_needs_and_changes_nothing(tmp_path: Path) -> None:
    recipe = load_recipe("charlm", KEYS)
    parts = [FORWARD, BACKWARD, STEP] if flash_kernels() is not None else [STEP]
    began = time.monotonic()
    with Compilers(recipe, parts, "key"):
        wait_for_compilers(lambda: False)
    took, ahead = time.monotonic() - began, compiled(tmp_path)
    alone = train(tmp_path, "alone", ready="0")
    after = compiled(tmp_path)
    more = {kind: sorted((Counter(after[kind]) - Counter(ahead[kind])).elements()) for kind in after}
    print(f"ahead in {took:.1f} s", json.dumps({kind: len(names) for kind, names in ahead.items()}), "later", json.dumps(more))
    assert ahead["triton"]
    # What scores held-out data goes forward without what a backward pass would need.
    assert len(more["flash"]) <= 1
    assert len(more["triton"]) <= 0.25 * len(ahead["triton"])
    assert len(alone) == 4
    assert train(tmp_path, "ready") == alone
    if cpu_cores() >= LEAST_CORES:
        assert len([path for path in tmp_path.rglob("windtunnel-*-*") if not path.name.endswith("-key")]) == len(parts)
