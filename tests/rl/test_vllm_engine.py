"""vLLM itself as the engine beside a learner, on a CPU; runs where WINDTUNNEL_VLLM_PYTHON names an interpreter that has it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from runs import new_run, series

from windtunnel.generate import GenerationJob
from windtunnel.rl import EngineProcess, train_policy

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "vllm_weights.py"
WIDER = {"hidden_size": 128, "intermediate_size": 256}
"""Heads of 32, the narrowest that vLLM has kernels for."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        "WINDTUNNEL_VLLM_PYTHON" not in os.environ, reason="WINDTUNNEL_VLLM_PYTHON names no interpreter with vLLM"
    ),
]


APART = ("model.adapter={rank: 4}", "stages.rl.engine_adapter=apart")


@pytest.mark.parametrize(
    ("more", "staleness"),
    [(("stages.rl.overlap=1",), [0, 1, 1, 1]), (("stages.rl.sync=direct",), [0, 0, 0, 0]), (APART, [0, 0, 0, 0])],
    ids=["by files, ahead", "directly", "adapters alone"],
)
def test_a_run_learns_from_vllms_answers_although_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], staleness: list[int]
) -> None:
    torch.set_num_threads(1)
    sets = ("stages.rl.engine=vllm", "stages.rl.temperature=0.8", "stages.rl.engine_seconds=900", *more)
    run = new_run(tmp_path, *sets, "budget.steps=4", config=WIDER)
    true, asked = EngineProcess.submit, []

    def submit(self: EngineProcess, jobs: Sequence[tuple[int, GenerationJob]]) -> None:
        asked.append(len(jobs))
        if len(asked) == 3:
            os.killpg(self.pid, signal.SIGKILL)
        true(self, jobs)

    monkeypatch.setattr(EngineProcess, "submit", submit)
    assert train_policy(run) == 0
    assert sum(series(run, "engine_restarts").values()) == 1
    assert list(series(run, "staleness").values()) == staleness
    assert series(run, "mismatch_largest")[1] < 1e-3  # the round by the very weights that learn from it
    assert max(series(run, "canary").values()) < 1e-5
    assert set(series(run, "too_old").values()) == {0.0}
    assert (run / "logs" / "engine-0-0.log").stat().st_size > 0


def test_faults_that_report_success_are_caught(tmp_path: Path) -> None:
    to = tmp_path / "found.json"
    subprocess.run([sys.executable, str(SCRIPT), "--tensor", "1", "--to", str(to)], check=True, timeout=1500)
    found = json.loads(to.read_text())["found"]
    receipts = {
        name: "the receipts" for name in ("dropped tensor", "half-updated shard", "stale version", "old weights, new number")
    }
    for way in ("disk", "direct"):
        assert _caught(found["tensor 1"][way]["faults"]) == receipts
        assert _caught(found["tensor 1, packed copies"][way]["faults"]) == {"packed copies left as they were": "the canary"}
        assert found["tensor 1"][way]["afterwards"]["same tokens again"]
    assert _caught(found["tensor 1, adapters apart"]["faults"]) == receipts


def _caught(faults: dict[str, dict[str, str]]) -> dict[str, str]:
    return {name: one["caught by"] for name, one in faults.items()}
