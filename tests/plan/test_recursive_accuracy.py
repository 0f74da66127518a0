"""Plans of recursive GPTs beside the committed measurements."""

import json
import statistics
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from windtunnel.plan import make_plan
from windtunnel.recipe import load_recipe
from windtunnel.rig import parse_rig

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def planning(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark's reader of configurations."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import planning

    return planning


@pytest.mark.parametrize("configs", ["RECURSIVE", "RECORDED"])
@pytest.mark.parametrize("split", ["calibrate", "held_out"])
def test_memory_is_near_what_was_measured_and_time_within_what_is_said(planning: ModuleType, split: str, configs: str) -> None:
    results = getattr(planning, f"{configs}_RESULTS")
    trials = {e["name"]: e["trial"] for e in json.loads(results.read_text())["configs"]}
    memory, seconds = [], []
    for config in planning.load_configs(getattr(planning, configs)):
        if config.split != split or config.name not in trials:
            continue
        trial, plan = trials[config.name], config.plan()
        assert plan.layout == config.layout()
        assert trial["failure"] is None
        memory.append(abs(plan.reserved_gib / trial["reserved_gib"] - 1))
        seconds.append(abs(plan.step_seconds / trial["step_seconds"] - 1))
        assert seconds[-1] <= plan.error["time"], config.name
        assert memory[-1] <= plan.error["memory"], config.name
    assert len(memory) >= 3
    assert statistics.median(memory) <= 0.03
    assert max(memory) <= 0.08
    assert statistics.median(seconds) <= (0.08 if configs == "RECORDED" else 0.09)
    if configs == "RECORDED":
        assert max(seconds) <= 0.20, "such steps do not wait for the host"


def test_launches_were_fitted_to_one_half_only(planning: ModuleType) -> None:
    import fit_planning

    fitted = {m.config.name for m in fit_planning.read("trm")}
    assert fitted == {c.name for c in planning.load_configs(planning.RECURSIVE) if c.split == "calibrate"}


def test_to_recorded_passes_nothing_was_fitted_and_their_errors_are_of_one_half(planning: ModuleType) -> None:
    import fit_planning

    recorded = {m.config.name for m in fit_planning.read("trm", recorded=True)}
    assert recorded == {c.name for c in planning.load_configs(planning.RECORDED) if c.split == "calibrate"}
    assert not recorded & {m.config.name for base in ("charlm", "sft", "trm") for m in fit_planning.read(base)}


# Measured on an H200 too, of shapes that no configuration has: GiB reserved, seconds a step.
SUDOKU = (2.49, (0.1067, 0.1229))  # seconds of two measurements, hours apart
FORKED = {"bf16": (44.128e9 / 2**30, 0.351), "fp8": (48.216e9 / 2**30, 0.329)}  # nothing was validated


def test_a_model_of_two_layers_is_within_what_is_said() -> None:
    plan = make_plan(load_recipe("trm-sudoku", ()), parse_rig("H200"))
    assert plan.layout.recorded
    gib, seconds = SUDOKU
    assert plan.reserved_gib == pytest.approx(gib, rel=0.03)
    for measured in seconds:
        assert abs(plan.step_seconds / measured - 1) <= plan.error["time"]


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_swiglu_in_either_precision_is_within_what_is_said(planning: ModuleType, precision: str) -> None:
    from recursion_peer import settings

    overrides = [
        *settings(12, 1024), "trm.preset=aggressive", "layout.recompute=none", f"stages.pretrain.precision={precision}",
        "stages.pretrain.micro_batch=16", "stages.pretrain.batch_tokens=16384",
    ]  # fmt: skip
    plan = make_plan(load_recipe("charlm", overrides), parse_rig("H200"), vocab=50_304)
    gib, seconds = FORKED[precision]
    assert plan.layout.recorded
    assert plan.layout.precision == precision
    assert abs(plan.step_seconds / seconds - 1) <= plan.error["time"]
    validating = plan.components["beside_recording"]
    assert plan.reserved_gib - validating <= gib <= plan.reserved_gib
    assert plan.reserved_gib - validating == pytest.approx(gib, rel=0.02)


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
