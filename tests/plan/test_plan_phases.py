"""Plans of recipes with phases: each phase's own, one budget, one total."""

from __future__ import annotations

import json

import pytest

from windtunnel.model import derive
from windtunnel.plan import climb_phases, depth_warnings, make_plan, phase_remarks, phase_rows, plan_phases
from windtunnel.recipe import load_recipe, phase_recipe
from windtunnel.rig import parse_rig

RIG = "8xH100"


def test_each_phase_is_planned_and_costs_add_up() -> None:
    recipe, rig = load_recipe("trm"), parse_rig(RIG)
    phased = plan_phases(recipe, rig)
    alone = [make_plan(phase_recipe(recipe, phase.name), rig) for phase in recipe.phases]
    assert [phase.plan for phase in phased.phases] == alone
    assert [plan.steps for plan in alone] == [1000, 5000]
    assert phased.dollars == pytest.approx(sum(plan.dollars or 0.0 for plan in alone))
    assert phased.hours == pytest.approx(sum(plan.hours for plan in alone))
    assert phase_rows(phased)[-1][-1] == f"${phased.dollars:,.2f}"
    as_json = json.loads(json.dumps(phased.to_json()))
    assert [phase["phase"] for phase in as_json["phases"]] == ["validation", "quality"]
    assert as_json["total"] == {"fits": True, "hours": phased.hours, "dollars": phased.dollars}


@pytest.mark.parametrize("key", ["dollars", "hours"])
def test_a_later_phase_has_what_the_ones_before_leave(key: str) -> None:
    rig = parse_rig(RIG)
    free = plan_phases(load_recipe("trm"), rig)
    first, second = (getattr(phase.plan, key) for phase in free.phases)
    tight = plan_phases(load_recipe("trm", [f"budget.{key}={first + second / 2}"]), rig)
    assert tight.phases[0].plan.steps == 1000
    assert tight.phases[1].plan.ended_by == f"budget.{key}"
    assert 2000 < tight.phases[1].plan.steps < 3000
    assert getattr(tight, key) == pytest.approx(first + second / 2, rel=0.01)


@pytest.mark.parametrize("key", ["dollars", "hours"])
def test_a_phase_that_nothing_is_left_for_is_refused_with_what_all_would_take(key: str) -> None:
    rig = parse_rig(RIG)
    free = plan_phases(load_recipe("trm"), rig)
    recipe = load_recipe("trm", [f"budget.{key}={getattr(free.phases[0].plan, key) / 2}"])
    phased = plan_phases(recipe, rig)
    assert phased.phases[0].plan.fits
    assert not phased.fits
    (reason,) = phased.phases[1].plan.reasons
    assert f"budget.{key} is for all phases" in reason
    (change,) = [alternative.change for alternative in phased.phases[1].plan.alternatives]
    enough = plan_phases(load_recipe("trm", [change.removeprefix("--set ")]), rig)
    assert enough.fits
    assert enough.phases[1].plan.steps >= 4900
    assert phase_rows(phased)[1][-1] == "does not fit"


def test_the_ladders_target_does_all_phases() -> None:
    ladder, phased = climb_phases(load_recipe("trm"), [parse_rig("1xH100"), parse_rig(RIG)])
    target = ladder.rungs[-1]
    assert (target.hours, target.dollars) == (phased.hours, phased.dollars)
    assert target.does == "2 phases, 6,000 steps"
    assert ladder.dollars == pytest.approx(sum(rung.dollars or 0.0 for rung in ladder.rungs))


def test_no_total_where_nothing_fits_and_a_named_one_where_some_do() -> None:
    too_much = load_recipe("trm", ["trm.loops=64", "trm.cycles=64", "trm.supervision=64"])
    assert [row[0] for row in phase_rows(plan_phases(too_much, parse_rig(RIG)))] == ["validation", "quality"]
    half = plan_phases(load_recipe("trm", ["budget.dollars=10"]), parse_rig(RIG))
    assert not half.fits
    assert phase_rows(half)[-1][0] == "those that fit"


def test_phases_of_other_depths_are_warned_of() -> None:
    rig = parse_rig(RIG)
    assert depth_warnings(plan_phases(load_recipe("trm"), rig)) == []
    other = plan_phases(load_recipe("trm", ["phases.validation.set.model.depth=4"]), rig)
    assert "validation 4, quality 12" in dict(phase_remarks(other))["warning"]


def test_a_rate_of_the_preset_is_said_to_be_the_presets() -> None:
    recipe = load_recipe("trm", ["stages.pretrain.optimizer.embedding_lr=0.3"])
    rules = {name: rule for name, _, rule in derive(phase_recipe(recipe, "validation"), 8192).rows()}
    assert (rules["matrix_lr"], rules["embedding_lr"]) == ("preset aggressive", "recipe")
