"""What the planner is measured on: benchmarks/planning_configs.yaml and the measurements that ship."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def planning() -> ModuleType:
    spec = importlib.util.spec_from_file_location("planning", BENCHMARKS / "planning.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["planning"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_both_halves_cover_every_kind(planning: ModuleType) -> None:
    configs = planning.load_configs()
    assert len({config.name for config in configs}) == len(configs) >= 28
    kinds = {
        split: {
            (c.base, c.gpus > 1, c.keys.get("model.adapter", "lora") is not None, c.keys.get("model.weights"),
             "moe" in c.name, c.keys.get("layout.recompute"))
            for c in configs if c.split == split
        }
        for split in ("calibrate", "held_out")
    }  # fmt: skip
    axes = [{split: {kind[axis] for kind in kinds[split]} for split in kinds} for axis in range(6)]
    assert all(axis["calibrate"] == axis["held_out"] for axis in axes)


def test_plans_choose_the_layouts_that_were_measured(planning: ModuleType) -> None:
    for config in planning.load_configs():
        assert config.plan().layout == config.layout(), config.name


@pytest.mark.parametrize("gpu", ["H100", "H200"])
def test_plain_steps_are_planned_as_they_will_be_recorded(planning: ModuleType, gpu: str) -> None:
    for config in planning.load_configs(BENCHMARKS / "planning_recorded_plain.yaml"):
        assert config.layout().recorded
        assert config.plan(gpu).layout == config.layout(), config.name


def test_measurements_are_of_these_configurations(planning: ModuleType) -> None:
    configs = {config.name: config for config in planning.load_configs()}
    entries = json.loads(planning.RESULTS.read_text())["configs"]
    assert {entry["name"] for entry in entries} == set(configs)
    for entry in entries:
        config, trial = configs[entry["name"]], entry["trial"]
        assert entry["split"] == config.split
        assert trial["layout"].items() <= config.layout().as_dict().items()
        assert trial["out_of_memory"] or trial["allocated_gib"] <= trial["reserved_gib"] < 140


def test_the_report_counts_a_plan_that_fits_and_ran_out(planning: ModuleType) -> None:
    good = {"name": "a", "fits": True, "memory_error": -0.02, "time_error": 0.1}
    rows = [good, {**good, "name": "b", "memory_error": 0.04}, {"name": "c", "fits": True, "out_of_memory": True}]
    summary = planning.summarise(rows)
    assert summary["said_to_fit_but_ran_out"] == ["c"]
    assert summary["memory_error"] == {"median": pytest.approx(0.03), "worst": 0.04}
