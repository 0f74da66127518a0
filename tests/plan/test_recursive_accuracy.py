"""Plans of recursive GPTs beside the committed measurements."""

import json
import statistics
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


@pytest.mark.parametrize("split", ["calibrate", "held_out"])
def test_memory_is_near_what_was_measured_and_time_within_what_is_said(planning: ModuleType, split: str) -> None:
    trials = {e["name"]: e["trial"] for e in json.loads(planning.RECURSIVE_RESULTS.read_text())["configs"]}
    memory = []
    for config in planning.load_configs(planning.RECURSIVE):
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
