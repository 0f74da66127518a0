"""The benchmark of DeepSeek-V3 beside fp8 experts: what it would run on GPUs is planned, and all of it runs tiny on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def moe(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import moe_fp8

    return moe_fp8


@pytest.mark.parametrize(("layers", "ranks"), [(1, 1), (4, 1), (8, 2)])
def test_true_shapes_fit_the_gpus_that_they_are_for(moe: ModuleType, tmp_path: Path, layers: int, ranks: int) -> None:
    plan, layout = moe.Case(layers, ranks, False, tmp_path).plan()
    assert plan.fits
    assert (layout.expert, layout.recompute, layout.micro_tokens) == (ranks, "block", 4096)
    assert plan.components["experts"] * 2**30 == pytest.approx(layers / ranks * 256 * 3 * 7168 * 2048, rel=1e-3)


def test_plans_are_near_what_was_measured_of_true_shapes(moe: ModuleType, tmp_path: Path) -> None:
    measured = json.loads((BENCHMARKS / "results" / "moe-fp8-h200.json").read_text())["steps"]
    assert {(entry["layers"], entry["ranks"]) for entry in measured} >= {(1, 1), (4, 1), (8, 2)}
    for entry in measured:
        now = moe.beside_plan(moe.Case(entry["layers"], entry["ranks"], False, tmp_path), entry["trial"])
        assert abs(now["memory_error"]) <= 0.05
        assert abs(now["time_error"]) <= 0.15


def test_whole_plans_take_over_what_was_measured(moe: ModuleType) -> None:
    entry = {"layers": 4, "time_error": -0.5, "trial": {"reserved_gib": 60.0}, "planned": {"reserved_gib": 59.0}}
    plans = moe.whole_plans([entry])
    shipped, measured = (plans[f"8xH200, as {how}"] for how in ("shipped", "measured"))
    assert shipped["fits"]
    assert measured["step_seconds"] > 1.5 * shipped["step_seconds"]


@pytest.mark.slow
def test_all_of_it_runs_on_a_cpu(tmp_path: Path) -> None:
    out = tmp_path / "moe.json"
    words = [sys.executable, str(BENCHMARKS / "moe_fp8.py"), "--tiny", "--steps", "2", "--layers", "1", "--out", str(out)]
    subprocess.run(words, check=True, timeout=500)
    report = json.loads(out.read_text())
    (entry,) = report["steps"]
    assert entry["trial"]["failure"] is None
    assert len(entry["trial"]["losses"]) >= 4
    assert report["adapter"]["same_bits"]
    assert report["adapter"]["merging_changes_loss_by"] < 0.01 * report["adapter"]["adapter_changes_loss_by"]
    assert report["products"]["experts"] == 8
    assert set(report["plans"]) == {"8xH200, as shipped", "8xB200, as shipped"}


@pytest.mark.slow
def test_answers_repeat_and_the_time_of_a_pass_is_told(tmp_path: Path) -> None:
    out = tmp_path / "answers.json"
    words = [sys.executable, str(BENCHMARKS / "moe_answers.py"), "--tiny", "--folder", str(tmp_path), "--out", str(out)]
    subprocess.run(words, check=True, timeout=500)
    (entry,) = json.loads(out.read_text())["cases"]
    assert entry["answers_repeated"] == entry["tokens_repeated"] == 1
    assert entry["steps"] >= 1
    assert entry["step_seconds"] > 0
