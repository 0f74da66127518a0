"""Plans of rounds say how many GPUs are the least that fits, how many to take, and why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from windtunnel.plan import Plan, climb_stages, lines, make_plan, stage_remarks
from windtunnel.recipe import load_recipe, stage_recipe
from windtunnel.rig import parse_rig


@pytest.fixture(autouse=True)
def no_corrections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDTUNNEL_CALIBRATION", "none")


def plan_of(model: str, rig: str, *sets: str, suggest: bool = True) -> Plan:
    recipe = stage_recipe(load_recipe("grpo", [f"model.config={model}", *sets]), "rl")
    return make_plan(recipe, parse_rig(rig), suggest=suggest)


def said(plan: Plan, label: str) -> str:
    return next((value for name, value, _ in lines(plan) if name == label), "")


def smaller(plan: Plan) -> Iterator[str]:
    yield from ("H100", "2xH100")
    assert plan.sizes is not None
    assert plan.sizes[0].gpus == 4


def test_the_least_is_what_no_fewer_gpus_hold_and_costs_are_those_of_its_own_plan() -> None:
    plan = plan_of("qwen2.5-7b", "2x(8xH100)")
    assert all(not plan_of("qwen2.5-7b", rig, suggest=False).fits for rig in smaller(plan))
    assert plan.sizes is not None
    for size in plan.sizes:
        alone = plan_of("qwen2.5-7b", size.rig, suggest=False)
        assert alone.fits
        assert (size.peak_gib, size.step_seconds, size.layout) == (alone.peak_gib, alone.step_seconds, alone.layout)
        assert size.roomy == (alone.verdict == "fits")
    assert [size.gpus for size in plan.sizes if size.least] == [4]
    assert said(plan, "least that fits").startswith("4xH100: ")


def test_recommended_is_the_cheapest_with_room_for_the_error_and_the_plan_says_so() -> None:
    plan = plan_of("qwen2.5-32b", "8x(8xH100)", "stages.rl.engine=vllm", "stages.rl.overlap=1")
    assert plan.sizes is not None
    take = next(size for size in plan.sizes if size.recommended)
    assert take.roomy
    assert take.gpu_seconds == min(size.gpu_seconds for size in plan.sizes if size.roomy)
    assert said(plan, "recommended").startswith(f"{take.rig}: " if not take.least else "the same: ")
    assert f"{take.gpus}: {take.gpu_seconds:,.0f}" in said(plan, "recommended")
    assert "stated error of 20%" in said(plan, "recommended")


def test_of_a_rig_that_only_just_fits_more_gpus_are_recommended() -> None:
    plan = plan_of("qwen2.5-7b", "H200")
    assert plan.verdict == "tight"
    assert "tight" in said(plan, "least that fits")
    assert said(plan, "recommended").startswith("2xH200: ")


def test_a_model_that_no_number_of_these_gpus_holds_says_that() -> None:
    assert "no number of GPUs" in said(plan_of("qwen2.5-32b", "8xH100"), "least that fits")


def test_only_plans_of_rounds_have_sizes_and_only_where_they_are_asked_for() -> None:
    assert plan_of("qwen2.5-7b", "8xH100", suggest=False).sizes is None
    tuned = make_plan(load_recipe("sft"), parse_rig("8xH100"))
    assert tuned.sizes is None
    assert not said(tuned, "recommended")


def test_several_rigs_are_told_the_same_as_one() -> None:
    recipe = load_recipe("grpo", ["model.config=qwen2.5-7b"])
    _, staged = climb_stages(recipe, [parse_rig("H200"), parse_rig("2x(8xH100)")])
    remarks = dict(stage_remarks(staged))
    assert remarks["rl, least that fits"].startswith("4xH100: ")
    assert "fewest GPU-seconds" in remarks["rl, recommended"]


def test_json_has_the_sizes_with_their_layout() -> None:
    found = plan_of("qwen2.5-7b", "8xH100").to_json()["sizes"]
    assert [(size["rig"], size["least"]) for size in found] == [("4xH100", True), ("8xH100", False)]
    assert found[0]["layout"]["ranks"] == 4
    assert found[0]["gpu_seconds"] == found[0]["gpus"] * found[0]["step_seconds"]
