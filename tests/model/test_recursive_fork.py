"""The public TRM fork of nanochat: the same loss and gradients on the same weights, as it gave them and where a checkout is."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from waiting import HANG

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RECORDED = json.loads((BENCHMARKS / "results" / "recursion-fork-losses-tiny.json").read_text())["losses"]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import recursion_losses

    return recursion_losses


@pytest.mark.parametrize("entry", RECORDED, ids=lambda entry: f"{entry['preset']}, tables {entry['fork_rotary_tables'][:4]}")
def test_weights_and_batch_that_the_fork_had_give_what_it_gave(benchmark: ModuleType, entry: dict[str, Any]) -> None:
    weights = {name: torch.empty(shape) for name, shape in entry["fork_weights"].items()}
    benchmark.fill(weights.values(), 7)
    model, ours = benchmark.our_losses(benchmark.Size(True), entry["rows"], entry["preset"], weights)
    # Its rotary tables are rounded to bf16; in fp32 nothing but rounding is left.
    exact = entry["fork_rotary_tables"] == "fp32"
    for name, value in entry["fork"].items():
        assert ours[name] == pytest.approx(value, rel=2e-6 if exact else 1e-4), name
    norms = {name: float(p.grad.norm()) for name, p in model.named_parameters() if p.grad is not None}
    assert norms == pytest.approx(entry["fork_gradient_norms"], rel=1e-4 if exact else 2e-2)


@pytest.mark.skipif("PEER" not in os.environ, reason="needs PEER=a checkout of CodeHalwell/nanochat-codhe")
def test_same_weights_and_batch_give_the_forks_losses_and_gradients(tmp_path: Path) -> None:
    out = tmp_path / "losses.json"
    command = [sys.executable, str(BENCHMARKS / "recursion.py"), "--parts", "losses", "--tiny", "--out", str(out)]
    subprocess.run(command, check=True, timeout=HANG)
    compared = json.loads(out.read_text())["losses"]
    assert {entry["preset"] for entry in compared} == {"moderate", "aggressive", "extreme"}
    for entry in compared:
        exact = entry["fork_rotary_tables"] == "fp32"
        assert entry["relative_difference"] < (2e-6 if exact else 1e-4), entry
        assert entry["worst_gradient_difference"] < (1e-4 if exact else 2e-2), entry
