"""Several rigs side by side: the same job on each, its hours, its dollars, and what waiting for it costs."""

from __future__ import annotations

import json

import pytest

from windtunnel.plan import compare_rigs, plan_stages
from windtunnel.recipe import load_recipe
from windtunnel.rig import parse_rig


def test_the_slow_rig_does_the_same_job_and_waiting_decides() -> None:
    rigs = [parse_rig(name) for name in ("A10G@$0.50", "8xH100@$4")]
    made = compare_rigs(load_recipe("charlm", ["model.depth=12"]), rigs, hour_value=18.0)
    assert made is not None
    slow, fast = made.rigs
    assert slow.hours > 5 * fast.hours, "the budget's hours end the run on the target alone"
    assert slow.dollars == pytest.approx(0.5 * slow.hours)
    assert slow.waiting == pytest.approx(18.5 * slow.hours)
    assert fast.waiting == pytest.approx(50 * fast.hours)
    cheapest = [text for label, text in made.remarks() if label == "cheapest"]
    assert len(cheapest) == 2
    assert "8xH100" in cheapest[1]


def test_every_stage_counts_and_the_target_is_planned_as_alone() -> None:
    recipe, target = load_recipe("trm"), parse_rig("8xH100")
    made = compare_rigs(recipe, [parse_rig("4xA10G"), target])
    assert made is not None
    other, last = made.rigs
    staged = plan_stages(recipe, target)
    assert [name for name, _ in last.stages] == [stage.name for stage in staged.stages] == [name for name, _ in other.stages]
    assert last.hours == pytest.approx(staged.hours)
    assert last.dollars == pytest.approx(staged.dollars)
    assert other.waiting is None


def test_downloads_and_evaluation_are_in_the_total() -> None:
    made = compare_rigs(load_recipe("sft", ["model.config=qwen2.5-7b"]), [parse_rig("8xH100"), parse_rig("8xH200")])
    assert made is not None
    for rig in made.rigs:
        assert rig.hours > sum(hours for _, hours in rig.stages)


def test_a_rig_that_cannot_do_it_says_why_and_the_others_stay() -> None:
    made = compare_rigs(load_recipe("sft", ["model.config=llama-3.1-70b"]), [parse_rig("4x(8xH100)"), parse_rig("A10G")])
    assert made is not None
    able, unable = made.rigs
    assert not able.reason
    assert "llama-3.1-70b" in unable.reason
    assert "4x(8xH100)" in made.measure, "the last rig that can do it says how long the job is"
    json.dumps(made.to_json(), allow_nan=False)
    assert unable.to_json()["hours"] is None
    assert compare_rigs(load_recipe("sft", ["model.config=llama-3.1-70b"]), [parse_rig("A10G")]) is None
