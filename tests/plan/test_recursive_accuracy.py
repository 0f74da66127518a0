"""Plans of recursive GPTs beside the committed measurements."""

import json
import statistics
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def planning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The benchmark's reader of configurations; no calibration of the user's."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("WINDTUNNEL_CALIBRATION", raising=False)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import planning

    return planning


@pytest.mark.parametrize("configs", ["RECURSIVE", "RECORDED"])
@pytest.mark.parametrize("split", ["calibrate", "held_out"])
def test_memory_is_near_what_was_measured_and_time_within_what_is_said(planning: ModuleType, split: str, configs: str) -> None:
    results = getattr(planning, f"{configs}_RESULTS")
    if configs == "RECORDED" and not results.exists():
        pytest.skip("recorded passes have not been measured")
    trials = {e["name"]: e["trial"] for e in json.loads(results.read_text())["configs"]}
    memory = []
    for config in planning.load_configs(getattr(planning, configs)):
        if config.split != split or config.name not in trials:
            continue
        trial, plan = trials[config.name], config.plan()
        assert plan.layout == config.layout()
        assert trial["failure"] is None
        memory.append(abs(plan.reserved_gib / trial["reserved_gib"] - 1))
        assert abs(plan.step_seconds / trial["step_seconds"] - 1) <= plan.error["time"], config.name
    assert len(memory) >= 3
    assert statistics.median(memory) <= 0.03
    assert max(memory) <= 0.08


def test_launches_were_fitted_to_one_half_only(planning: ModuleType) -> None:
    import fit_planning

    fitted = {m.config.name for m in fit_planning.read("trm")}
    assert fitted == {c.name for c in planning.load_configs(planning.RECURSIVE) if c.split == "calibrate"}


def test_recorded_and_launched_are_the_same_configurations_in_the_same_halves(planning: ModuleType) -> None:
    launched, recorded = (planning.load_configs(path) for path in (planning.RECURSIVE, planning.RECORDED))
    assert len(launched) == len(recorded)
    for one, other in zip(launched, recorded, strict=True):
        assert other.name == one.name.replace("trm-", "recorded-")
        assert other.split == one.split
        assert other.layout() == replace(one.layout(), recorded=True)
        assert {**other.keys, "stages.pretrain.graphs": False} == one.keys
        assert other.plan().layout == other.layout(), "what is measured is what a run does"
        assert one.plan().layout == one.layout()
