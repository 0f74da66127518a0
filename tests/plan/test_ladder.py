"""The ladder: what is done, proven and paid on each rung, and what stands in for a model that does not fit one."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from windtunnel.plan import COLUMNS, Ladder, climb, ladder_remarks, ladder_rows, make_plan
from windtunnel.plan.ladder import PROVES, STEPS, brief, holds
from windtunnel.recipe import Recipe, UserError, load_recipe
from windtunnel.rig import parse_rig

SEED = ("cpu@$0", "g5.xlarge", "g5.12xlarge", "p5.48xlarge")
WIDTH = 100


def charlm(*overrides: str) -> Recipe:
    return load_recipe("charlm", overrides)


def climbed(recipe: Recipe, *rigs: str) -> Ladder:
    """With a CPU of a known speed, whatever this machine is busy with."""
    found = [parse_rig(name) for name in rigs]
    return climb(recipe, [replace(rig, cpu_gflops=100.0, cpu_cores=2, ram_gib=16.0) if rig.gpu is None else rig for rig in found])


def test_a_ladder_rehearses_cheaply_and_runs_on_the_target() -> None:
    ladder = climbed(charlm(), *SEED)
    assert [rung.level for rung in ladder.rungs] == ["cpu", "gpu", "node", "node"]
    assert [rung.target for rung in ladder.rungs] == [False, False, False, True]
    assert ladder.rungs[-1].hours == ladder.rungs[-1].plan.hours
    assert ladder.rungs[-1].dollars == ladder.rungs[-1].plan.dollars
    assert ladder.dollars == pytest.approx(sum(rung.dollars or 0 for rung in ladder.rungs))
    assert ladder.unpriced == ()
    for rung in ladder.rungs[:-1]:
        assert 0 < rung.hours < ladder.rungs[-1].hours
        assert rung.dollars == pytest.approx(rung.hours * rung.plan.dollars_per_hour)
    assert sum(rung.dollars for rung in ladder.rungs[:-1]) < 0.1 * ladder.rungs[-1].dollars, "rehearsing is the cheap part"


def test_every_rung_plans_the_model_that_the_target_trains() -> None:
    ladder = climbed(charlm(), *SEED)
    depth = make_plan(charlm(), parse_rig("p5.48xlarge")).depth
    assert {rung.plan.depth for rung in ladder.rungs} == {depth}
    assert ladder.rungs[0].shown.params < 1e6, "the CPU runs the scale model"


def test_ten_full_size_steps_are_what_a_gpu_rung_takes() -> None:
    slow = climbed(charlm("model.depth=24"), "g5.xlarge", "8xH100").rungs[0]
    quick = climbed(charlm("model.depth=24"), "H100", "8xH100").rungs[0]
    assert slow.hours - quick.hours == pytest.approx(STEPS * (slow.plan.step_seconds - quick.plan.step_seconds) / 3600, rel=0.05)


def test_the_target_says_what_nothing_below_it_shows() -> None:
    straight = climbed(charlm(), "8xH100").rungs[-1]
    assert all(PROVES[level] in straight.proves for level in ("cpu", "gpu", "node"))
    climbed_to = climbed(charlm(), "cpu@$0", "g5.xlarge", "8xH100").rungs[-1]
    assert PROVES["gpu"] not in climbed_to.proves
    assert PROVES["node"] in climbed_to.proves


@pytest.mark.parametrize("rung", ["g5.xlarge", "RTX4090"])
def test_a_stand_in_fits_where_the_model_does_not(rung: str) -> None:
    recipe = charlm("model.depth=48")
    below = climbed(recipe, rung, "8xH200").rungs[0]
    assert not holds(below.plan)
    assert below.stand_ins
    for stand_in in below.stand_ins:
        words = shlex.split(stand_in.change)
        changes = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
        assert make_plan(charlm("model.depth=48", *changes), parse_rig(rung)).fits
    assert "stand-in" in below.does
    assert "stand-in" in below.proves


def test_a_choice_made_for_the_target_is_left_open_below_it() -> None:
    ladder = climbed(charlm("stages.pretrain.precision=fp8", "model.depth=12"), "g5.xlarge", "8xH100")
    assert ladder.rungs[0].plan.layout.precision == "bf16"
    assert "fp8" in ladder.rungs[0].notes[0]
    assert ladder.rungs[-1].plan.layout.precision == "fp8"


def test_what_the_target_cannot_mean_is_refused() -> None:
    with pytest.raises(UserError, match="fp8"):
        climbed(charlm("stages.pretrain.precision=fp8", "model.depth=12"), "8xH100", "g5.xlarge")


def test_a_target_that_does_not_fit_costs_nothing_and_says_why() -> None:
    ladder = climbed(charlm("model.depth=128"), "g5.xlarge", "8xH100")
    assert not ladder.rungs[-1].plan.fits
    assert ladder.rungs[-1].hours is None
    assert ladder.rungs[-1].dollars is None
    labels = [label for label, _ in ladder_remarks(ladder)]
    assert "does not fit" in labels
    assert "instead" in labels


def test_a_rung_without_a_price_is_left_out_of_the_total_and_named() -> None:
    ladder = climbed(charlm(), "cpu", "8xH100")
    assert ladder.unpriced == ("cpu",)
    assert ladder.dollars == ladder.rungs[-1].dollars
    assert any("leaves out cpu" in text for _, text in ladder_remarks(ladder))


@pytest.mark.parametrize("overrides", [(), ("model.depth=48",), ("model.depth=64",), ("model.depth=128",)])
def test_the_table_is_at_most_100_columns_wide(overrides: tuple[str, ...]) -> None:
    ladder = climbed(charlm(*overrides), "cpu", "g5.xlarge", "4x(4xGH200)", "16xp5.48xlarge")
    rows = [COLUMNS, *ladder_rows(ladder)]
    assert {len(row) for row in rows} == {len(COLUMNS)}
    widths = [max(len(line) for row in rows for line in row[i].split("\n")) for i in range(len(COLUMNS))]
    assert 1 + sum(widths) + 3 * (len(COLUMNS) - 1) <= WIDTH
    assert rows[-1][0] == "total"


def test_layouts_in_short() -> None:
    assert brief(make_plan(charlm("model.depth=12"), parse_rig("8xH100")).layout).startswith("ZeRO-1 8, ")
    assert brief(make_plan(charlm("model.depth=12"), parse_rig("H100")).layout).startswith("1 rank, ")


def finetune(*overrides: str) -> Recipe:
    return load_recipe("sft", overrides)


def test_seed_ladder_of_a_7b_model_full_on_8xh100_with_lora_below() -> None:
    ladder = climbed(finetune("model.adapter=null"), "cpu", "g5.xlarge", "g5.12xlarge", "p5.48xlarge")
    cpu, gpu, node, target = ladder.rungs
    assert not holds(cpu.plan)
    assert cpu.does == "check"
    assert cpu.to_json()["reasons"]
    assert not holds(gpu.plan)
    assert "qwen2.5-7b as LoRA" in gpu.stand_ins[0].what
    assert gpu.stand_ins[1].what.startswith("qwen"), "a smaller one of the same family, all weights trained"
    assert gpu.stand_ins[1].plan.method == "full"
    assert target.plan.fits
    assert target.plan.method == "full"
    assert gpu.dollars + node.dollars < target.dollars


def test_stand_ins_fit_and_are_of_the_family() -> None:
    ladder = climbed(finetune("model.config=deepseek-v3"), "g5.xlarge", "8xH100")
    for rung in ladder.rungs:
        assert rung.stand_ins
        for stand_in in rung.stand_ins:
            assert stand_in.plan.fits
            assert "deepseek" in stand_in.what
            words = shlex.split(stand_in.change)
            changes = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
            assert make_plan(finetune("model.config=deepseek-v3", *changes), parse_rig(rung.rig.name)).fits


def test_a_layout_for_the_target_does_not_stop_the_rungs_below() -> None:
    overrides = ("model.config=qwen2.5-32b", "layout.tensor=8", "layout.pipeline=2")
    ladder = climbed(finetune(*overrides), "g5.xlarge", "2x(8xH100)")
    assert ladder.plan.layout.tensor == 8
    assert ladder.rungs[0].plan.layout.tensor == 1
    assert ladder.rungs[0].notes


def test_a_cpu_is_a_target_for_a_hugging_face_model_that_it_holds() -> None:
    assert not holds(climbed(finetune(), "cpu").plan)
    small = climbed(finetune("model.config=smollm2-135m-instruct", "model.sequence=256"), "cpu")
    assert small.plan.layout.device == "cpu"
    assert small.rungs[-1].does.startswith(("whole run", "does not fit"))


def test_a_grpo_ladder_rehearses_two_rounds() -> None:
    ladder = climbed(load_recipe("rl", ()), "g5.xlarge", "8xH100@$2.50", "4x(8xH100)@$2.50")
    gpu, node, target = ladder.rungs
    assert "2 rounds" in gpu.does or gpu.does == "check"
    assert node.does == "check, 2 rounds"
    assert target.does.endswith("rounds")
    assert node.dollars < target.dollars
    rows = ladder_rows(ladder)
    assert "in turn" in rows[1][1] or "learner" in rows[1][1]
