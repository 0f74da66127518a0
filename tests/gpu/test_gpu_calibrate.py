# mypy: disable-error-code="no-untyped-def, no-untyped-call, arg-type, operator, misc"
"""plan --calibrate on a real GPU: measures, keeps, and the next plan is right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

RECIPE = ("charlm", "--set", "model.depth=8", "--set", "stages.pretrain.deterministic=false")


def windtunnel_plan(folder: Path, *arguments: str) -> Any:
    command = [sys.executable, "-m", "windtunnel", "plan", *RECIPE, *arguments, "--json"]
    environment = os.environ | {"XDG_CONFIG_HOME": str(folder), "CUDA_VISIBLE_DEVICES": "0"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_calibrated_plan_says_what_was_measured(tmp_path: Path) -> None:
    before = windtunnel_plan(tmp_path)[0]
    done = windtunnel_plan(tmp_path, "--calibrate")
    after = windtunnel_plan(tmp_path)[0]
    measured = done["measured"]
    print(f"planned {done['planned']}, measured {measured['reserved_gib']:.2f} GiB, {measured['step_seconds']:.4f} s")
    assert Path(done["file"]).parent == tmp_path / "windtunnel" / "calibration"
    assert done["planned"]["reserved_gib"] == pytest.approx(before["reserved_gib"])
    assert after["step_seconds"] == pytest.approx(measured["step_seconds"], rel=0.01)
    assert after["error"]["time"] < before["error"]["time"]
    # What a correction may take away is bounded; what it adds is not.
    least = 0.85 * before["peak_gib"] - (before["peak_gib"] - before["reserved_gib"])
    assert after["reserved_gib"] == pytest.approx(max(measured["reserved_gib"], least), rel=0.01)
