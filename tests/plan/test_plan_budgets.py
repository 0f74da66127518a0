"""Budgets of plans: which limit ends a run, what is said of it, and the fix where it is too small."""

from dataclasses import replace

import pytest
from gpt_recipes import charlm, laptop

from windtunnel.plan import lines, make_plan, resolve
from windtunnel.rig import parse_rig


def test_dollars_limit_the_hours() -> None:
    plan = make_plan(charlm("budget.hours=null", "budget.dollars=25", "model.depth=12"), parse_rig("8xH100@$2.50"))
    assert plan.ended_by == "budget.dollars"
    assert plan.dollars is not None
    assert 24.5 < plan.dollars <= 25.0


def test_first_limit_wins() -> None:
    rig = parse_rig("8xH100@$2.50")
    assert make_plan(charlm("model.depth=12", "budget.steps=7"), rig).steps == 7
    plan = make_plan(charlm("model.depth=12", "budget.tokens=100M", "budget.dollars=1000"), rig)
    assert plan.ended_by == "budget.tokens"
    assert 0 <= 100e6 - plan.tokens < plan.layout.batch_tokens
    plan = make_plan(charlm("model.depth=12", "budget.hours=null"), rig)
    assert plan.ended_by == "stages.pretrain.tokens_per_parameter"
    assert plan.tokens == pytest.approx(plan.derived_tokens, rel=0.01)


def test_dollars_without_a_price_are_said_not_to_limit() -> None:
    plan = make_plan(charlm("budget.hours=null", "budget.dollars=25"), laptop())
    assert plan.fits
    assert plan.dollars is None
    assert any("budget.dollars cannot limit" in note for note in plan.notes)
    assert plan.hours <= 1.1, "auto then stops at an hour's work on a CPU"


def test_dollars_on_a_rig_that_costs_nothing_do_not_limit() -> None:
    machine = replace(laptop(), dollars_per_hour=0.0, price_note="$0.00/h from $WINDTUNNEL_PRICE")
    plan = make_plan(charlm("model.depth=2", "budget.hours=null", "budget.dollars=5"), machine)
    assert plan.fits
    assert plan.dollars == 0
    assert plan.ended_by == "stages.pretrain.tokens_per_parameter"
    assert any("costs nothing" in note for note in plan.notes)
    assert make_plan(charlm("model.depth=2", "budget.hours=1", "budget.dollars=5"), machine).ended_by == "budget.hours"


def test_the_fix_for_a_budget_raises_every_limit_that_is_too_small() -> None:
    short = ("model.depth=12", "budget.hours=0.001", "budget.dollars=0.01")
    plan = make_plan(charlm(*short), parse_rig("8xH100"))
    assert not plan.fits
    (option,) = plan.alternatives
    assert option.change.count("--set") == 2
    assert make_plan(charlm(*short, *option.change.replace("--set ", "").split()), parse_rig("8xH100")).fits


def test_a_limit_below_one_step_is_told() -> None:
    plan = make_plan(charlm("model.depth=12", "budget.tokens=100"), parse_rig("H100"))
    assert plan.steps == 1
    assert any("budget.tokens is 100 tokens, less than" in note for note in plan.notes)
    assert any("ends the run at less than 1% of the tokens" in note for note in plan.notes)
    rows = {label: value for label, value, _ in lines(plan)}
    assert rows["length"].startswith("1 step, ")
    assert not rows["epochs"].startswith("0.00 ")


def test_budget_too_short_for_a_step() -> None:
    plan = make_plan(charlm("model.depth=24", "budget.hours=0.001"), parse_rig("H100"))
    assert not plan.fits
    assert "before the first step" in plan.reasons[0]
    change = plan.alternatives[0].change.removeprefix("--set ")
    assert make_plan(charlm("model.depth=24", change), parse_rig("H100")).fits


def test_auto_depth_is_the_deepest_that_reaches_its_tokens() -> None:
    depths = []
    for rig in (laptop(), parse_rig("H100"), parse_rig("8xH100")):
        plan = make_plan(charlm(), rig)
        resolved = resolve(charlm(), rig)
        assert resolved.model.depth == plan.depth
        assert any("auto" in note for note in plan.notes)
        assert resolve(resolved, rig) is resolved
        deeper = make_plan(charlm(f"model.depth={plan.depth + 2}"), rig)
        assert not deeper.fits or deeper.tokens < deeper.derived_tokens
        if plan.depth > 2:
            assert plan.tokens >= 0.99 * plan.derived_tokens
        depths.append(plan.depth)
    assert depths == sorted(depths)
    assert depths[0] < depths[1] < depths[2]


def test_epochs_warn_past_4_and_ask_past_16() -> None:
    rig, recipe = parse_rig("8xH100"), charlm("model.depth=12", "budget.hours=null", "budget.tokens=1B")
    few, some, many = (make_plan(recipe, rig, corpus_tokens=n) for n in (500e6, 200e6, 50e6))
    assert (few.needs_yes, few.warnings) == (False, ())
    assert not some.needs_yes
    assert "5.0 epochs" in some.warnings[0]
    assert many.needs_yes
    assert "--yes" in many.warnings[0]


def test_data_that_are_repeated_too_often_say_what_they_would_suffice_for() -> None:
    rig, recipe = parse_rig("8xH100@$4"), charlm("model.depth=20", "budget.tokens=5B")
    told = make_plan(recipe, rig, corpus_tokens=400e6).warnings[1]
    assert "4 epochs are 1.6 B tokens: at depth 20 " in told
    assert "$" in told
    assert "depth 20 is best trained with 4.7" in told
    depth = int(told.partition("--set model.depth=")[2].split()[0])
    fed = make_plan(charlm(f"model.depth={depth}", "budget.tokens=1.6B"), rig, corpus_tokens=400e6)
    deeper = make_plan(charlm(f"model.depth={depth + 2}", "budget.tokens=1.6B"), rig, corpus_tokens=400e6)
    assert fed.derived_tokens <= 1.6e9 < deeper.derived_tokens
    assert make_plan(recipe, rig, corpus_tokens=2e9).warnings == ()


def test_what_ends_the_run_is_said_with_what_comes_later() -> None:
    rig = parse_rig("8xH100@$2.50")
    plan = make_plan(charlm("model.depth=12", "budget.hours=2", "budget.dollars=10", "budget.tokens=100B"), rig)
    assert plan.ends.startswith(
        "at budget.dollars ($10.00), before budget.hours (2.00 h), budget.tokens (100,000,000,000), which"
    )
    assert any(label == "ends" and value == plan.ends for label, value, _ in lines(plan))
    unlimited = make_plan(charlm("model.depth=12", "budget.hours=null"), rig)
    assert unlimited.ends.startswith("after the ")


def test_a_plan_that_does_not_fit_prints_no_hours_and_dollars() -> None:
    plan = make_plan(charlm("model.depth=128"), parse_rig("8xH100"))
    labels = {label for label, _, _ in lines(plan)}
    assert not labels & {"time", "cost", "length", "ends", "epochs", "disk"}
    assert not any("best trained with" in note for note in plan.notes)
    assert {"time", "cost", "length", "ends"} <= {
        label for label, _, _ in lines(make_plan(charlm("model.depth=12"), parse_rig("8xH100")))
    }


def test_epoch_budget() -> None:
    recipe = charlm("model.depth=12", "budget.hours=null", "budget.epochs=2")
    plan = make_plan(recipe, parse_rig("8xH100"), corpus_tokens=300e6)
    assert plan.ended_by == "budget.epochs"
    assert 1.9 < (plan.epochs or 0) <= 2.0


def test_what_helps_the_budget_is_no_plan_that_works_while_memory_does_not_suffice() -> None:
    plan = make_plan(charlm("model.depth=200"), parse_rig("H100"))
    assert len(plan.reasons) == 2, "memory, and a budget that ends before the first step"
    assert [a.change for a in plan.alternatives if "budget" in a.change] == []
    small = make_plan(charlm("model.depth=12", "budget.hours=0.001"), parse_rig("H100"))
    assert [a.change.partition("=")[0] for a in small.alternatives] == ["--set budget.hours"]
