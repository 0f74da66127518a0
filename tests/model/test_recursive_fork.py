"""The public TRM fork of nanochat, where a checkout is at hand (PEER=folder): the same loss and gradients on the same weights."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "recursion.py"


@pytest.mark.skipif("PEER" not in os.environ, reason="needs PEER=a checkout of CodeHalwell/nanochat-codhe")
def test_same_weights_and_batch_give_the_forks_losses_and_gradients(tmp_path: Path) -> None:
    out = tmp_path / "losses.json"
    command = [sys.executable, str(BENCHMARK), "--parts", "losses", "--tiny", "--out", str(out)]
    subprocess.run(command, check=True, timeout=110)
    compared = json.loads(out.read_text())["losses"]
    assert {entry["preset"] for entry in compared} == {"moderate", "aggressive", "extreme"}
    for entry in compared:
        # Its rotary tables are rounded to bf16; in fp32 nothing but rounding is left.
        exact = entry["fork_rotary_tables"] == "fp32"
        assert entry["relative_difference"] < (2e-6 if exact else 1e-4), entry
        assert entry["worst_gradient_difference"] < (1e-4 if exact else 2e-2), entry
