"""Plans of recipes with stages: each stage's own, one budget, one total."""

from __future__ import annotations

import json

import pytest

from windtunnel.model import derive
from windtunnel.plan import climb_stages, depth_warnings, make_plan, plan_stages, stage_remarks, stage_rows
from windtunnel.recipe import load_recipe, stage_recipe
from windtunnel.rig import parse_rig

RIG = "8xH100"


def test_each_stage_is_planned_and_costs_add_up() -> None:
    recipe, rig = load_recipe("trm"), parse_rig(RIG)
    staged = plan_stages(recipe, rig)
    alone = [make_plan(stage_recipe(recipe, stage.name), rig) for stage in recipe.training]
    assert [stage.plan for stage in staged.stages] == alone
    assert [plan.steps for plan in alone] == [1000, 5000]
    assert staged.dollars == pytest.approx(sum(plan.dollars or 0.0 for plan in alone))
    assert staged.hours == pytest.approx(sum(plan.hours for plan in alone))
    assert stage_rows(staged)[-1][-1] == f"${staged.dollars:,.2f}"
    as_json = json.loads(json.dumps(staged.to_json()))
    assert [stage["stage"] for stage in as_json["stages"]] == ["validation", "quality"]
    assert as_json["total"] == {"fits": True, "hours": staged.hours, "dollars": staged.dollars}


def test_a_plan_says_what_must_hold_between_stages() -> None:
    staged = plan_stages(load_recipe("kernels"), parse_rig(RIG))
    assert staged.gates["evaluate"] == {"gain": "surely above 0"}
    assert list(staged.gates["sft"]) == ["answers", "decreasing"]
    assert staged.to_json()["gates"] == staged.gates
    assert dict(stage_remarks(staged))["evaluate, gates"] == "gain surely above 0"
    assert "utilisation" in plan_stages(load_recipe("trm"), parse_rig(RIG)).gates["validation"]


@pytest.mark.parametrize("key", ["dollars", "hours"])
def test_a_later_stage_has_what_the_ones_before_leave(key: str) -> None:
    rig = parse_rig(RIG)
    free = plan_stages(load_recipe("trm"), rig)
    first, second = (getattr(stage.plan, key) for stage in free.stages)
    tight = plan_stages(load_recipe("trm", [f"budget.{key}={first + second / 2}"]), rig)
    assert tight.stages[0].plan.steps == 1000
    assert tight.stages[1].plan.ended_by == f"budget.{key}"
    assert 2000 < tight.stages[1].plan.steps < 3000
    assert getattr(tight, key) == pytest.approx(first + second / 2, rel=0.01)


@pytest.mark.parametrize("key", ["dollars", "hours"])
def test_a_stage_that_nothing_is_left_for_is_refused_with_what_all_would_take(key: str) -> None:
    rig = parse_rig(RIG)
    free = plan_stages(load_recipe("trm"), rig)
    recipe = load_recipe("trm", [f"budget.{key}={getattr(free.stages[0].plan, key) / 2}"])
    staged = plan_stages(recipe, rig)
    assert staged.stages[0].plan.fits
    assert not staged.fits
    (reason,) = staged.stages[1].plan.reasons
    assert f"budget.{key} is for all stages" in reason
    (change,) = [alternative.change for alternative in staged.stages[1].plan.alternatives]
    enough = plan_stages(load_recipe("trm", [change.removeprefix("--set ")]), rig)
    assert enough.fits
    assert enough.stages[1].plan.steps >= 4900
    assert stage_rows(staged)[1][-1] == "does not fit"


def test_the_ladders_target_does_all_stages() -> None:
    ladder, staged = climb_stages(load_recipe("trm"), [parse_rig("1xH100"), parse_rig(RIG)])
    target = ladder.rungs[-1]
    assert (target.hours, target.dollars) == (staged.hours, staged.dollars)
    assert target.does == "2 stages, 6,000 steps"
    assert ladder.dollars == pytest.approx(sum(rung.dollars or 0.0 for rung in ladder.rungs))


def test_no_total_where_nothing_fits_and_a_named_one_where_some_do() -> None:
    too_much = load_recipe("trm", ["trm.loops=64", "trm.cycles=64", "trm.supervision=64"])
    assert [row[0] for row in stage_rows(plan_stages(too_much, parse_rig(RIG)))] == ["validation", "quality"]
    half = plan_stages(load_recipe("trm", ["budget.dollars=10"]), parse_rig(RIG))
    assert not half.fits
    assert stage_rows(half)[-1][0] == "those that fit"


def test_stages_of_other_depths_are_warned_of() -> None:
    rig = parse_rig(RIG)
    assert depth_warnings(plan_stages(load_recipe("trm"), rig)) == []
    other = plan_stages(load_recipe("trm", ["stages.validation.set.model.depth=4"]), rig)
    assert "validation 4, quality 12" in dict(stage_remarks(other))["warning"]


def test_a_rate_of_the_preset_is_said_to_be_the_presets() -> None:
    recipe = load_recipe("trm", ["stages.pretrain.optimizer.embedding_lr=0.3"])
    rules = {name: rule for name, _, rule in derive(stage_recipe(recipe, "validation"), 8192).rows()}
    assert (rules["matrix_lr"], rules["embedding_lr"]) == ("preset aggressive", "recipe")


def test_what_does_not_fit_has_no_hours_and_no_dollars_in_json() -> None:
    poor = make_plan(load_recipe("charlm", ["budget.dollars=0.01"]), parse_rig(RIG)).to_json()
    assert (poor["fits"], poor["hours"], poor["dollars"]) == (False, None, None)
    tuned = make_plan(load_recipe("sft", ["budget.dollars=0.01"]), parse_rig(RIG)).to_json()
    assert tuned["options"]
    assert {(option["hours"], option["dollars"]) for option in tuned["options"]} == {(None, None)}
    none = plan_stages(load_recipe("trm", ["model.depth=80"]), parse_rig("H100")).to_json()
    assert none["total"] == {"fits": False, "hours": None, "dollars": None}
    assert {stage["hours"] for stage in none["stages"]} == {None}
