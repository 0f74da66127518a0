# mypy: disable-error-code="no-untyped-def, no-untyped-call, arg-type, operator, misc"
"""The rungs above the CPU on real GPUs: the check of the GPUs, and full-size steps beside their plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.check import all_checks
from windtunnel.rehearse import run_checks, select
from windtunnel.rehearse.climbing import node, one_gpu
from windtunnel.rehearse.context import Rehearsal

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def rehearsal(folder: Path) -> Rehearsal:
    return Rehearsal("charlm", ("model.depth=12", "stages.pretrain.deterministic=false"), ("here",), folder)


def test_the_gpus_hold(tmp_path: Path) -> None:
    made = run_checks(select(all_checks(), ["gpu"]), rehearsal(tmp_path))[-1]
    print(made.evidence, made.seconds)
    assert made.status == "ok", made.evidence


@pytest.mark.parametrize("stage", [one_gpu, node])
def test_full_size_steps_are_held_against_the_plan(stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windtunnel.rehearse.climbing.GATE", 0.5)  # how far off plans are, benchmarks/planning.py tells
    made = rehearsal(tmp_path)
    if stage is node and made.here.gpus < 2:
        pytest.skip("needs two GPUs")
    evidence = stage(made, print)
    print(evidence.text)
    assert evidence.absent is None
    assert not evidence.warnings
    assert len(evidence.facts["losses"]) >= 10
