"""Plans of GPTs whose weights and gradients are shared over the ranks: where, and what of them lies where."""

from __future__ import annotations

from dataclasses import replace

import pytest

from windtunnel.model import recipe_shape
from windtunnel.plan import make_plan
from windtunnel.plan.constants import load_constants
from windtunnel.plan.engine_gpt import memory
from windtunnel.plan.gpt_steptime import step_seconds
from windtunnel.recipe import Layout, Recipe, UserError, load_recipe
from windtunnel.rig import parse_rig

FULL = "layout.shard=full"
FIXED = ("model.depth=24", "stages.pretrain.micro_batch=4", "stages.pretrain.batch_tokens=262144")


def charlm(*overrides: str) -> Recipe:
    return load_recipe("charlm", overrides)


def layout(shard: str, ranks: int = 8) -> Layout:
    return Layout(ranks, 2, 2, 2048, "bf16", True, "cuda", shard=shard, fused=True)


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_what_ranks_share_adds_up_to_the_whole(ranks: int) -> None:
    shape, c = recipe_shape(charlm("model.depth=32"), 18), load_constants("H100")
    whole = memory(shape, layout("optimizer", 1), c).ledger.static
    shared = memory(shape, layout("full", ranks), c).ledger.static
    assert {name: ranks * size for name, size in shared.items()} == pytest.approx(whole)
    assert whole["weights"] == whole["gradients"] == 4.0 * shape.parameters


def test_a_part_of_a_block_is_whole_at_a_time() -> None:
    shape, c = recipe_shape(charlm("model.depth=64"), 18), load_constants("H100")
    peak = memory(shape, layout("full"), c).moments
    mlp = 2.0 * shape.dim * shape.hidden
    for moment in peak:
        assert moment.components.get("compute_weights", 0.0) == 0.0
        assert moment.components.get("gathered_weights", 0.0) < 3 * 2.0 * mlp / 2**30
        assert moment.components.get("communication", 0.0) < (3 * 2.0 + 2 * 4.0) * mlp / 2**30
    backward = next(moment for moment in peak if moment.name == "backward")
    assert backward.components["communication"] > 4.0 * mlp / 2**30, "fp32 gradients on their way"


def test_sharing_more_takes_less_memory_and_more_time() -> None:
    rig = parse_rig("8xH200")
    share, less = make_plan(charlm(*FIXED), rig), make_plan(charlm(*FIXED, FULL), rig)
    assert (share.layout.shard, less.layout.shard) == ("optimizer", "full")
    assert replace(less.layout, shard="optimizer") == share.layout
    assert "weights sharded" in less.layout.describe()
    saved = share.peak_gib - less.peak_gib
    assert saved > 0.5 * 8.0 * share.params * 7 / 8 / 2**30
    assert less.step_seconds >= share.step_seconds
    assert less.step_terms["communication"] > share.step_terms["communication"]
    assert less.error["memory"] > share.error["memory"]
    assert less.peak_gib == pytest.approx(sum(less.components.values()))
    assert all(f"components.{name}" in less.sources for name in less.components)


def test_more_micro_batches_are_gathered_for_more_often() -> None:
    recipe, rig, c = charlm("model.depth=48"), parse_rig("8xH100"), load_constants("H100")
    shape = recipe_shape(recipe, 18)
    once, twice = (replace(layout("full"), micro_batch=4 // n, accumulation=n) for n in (1, 2))
    terms = [step_seconds(shape, each, rig, c).terms["communication"] for each in (once, twice)]
    assert 1.7 < terms[1] / terms[0] < 2.0, "all but the exchange of matrices, which is once a step"


@pytest.mark.parametrize("rig", ["H100", "8xH100", "2x(8xH100)", "g5.xlarge", "4xRTX4090"])
def test_what_fits_with_whole_weights_is_planned_with_them(rig: str) -> None:
    plan = make_plan(charlm("model.depth=12"), parse_rig(rig))
    assert plan.fits
    assert plan.layout.shard == "optimizer"
    assert not any("part by part" in note for note in plan.notes)


def test_d64_fits_8xh100_with_everything_shared() -> None:
    plan = make_plan(charlm("model.depth=64"), parse_rig("8xH100"))
    assert plan.fits
    assert plan.layout.shard == "full"
    assert any("part by part" in note for note in plan.notes)
    per_rank = 12.0 * plan.parameters["matrices"] / 8 / 2**30
    held = sum(plan.components[name] for name in ("weights", "gradients", "muon_momentum"))
    assert held == pytest.approx(per_rank, rel=0.01)


def test_in_fp8_nothing_is_held_whole_either() -> None:
    rig = parse_rig("8xH100")
    plain, quick = (make_plan(charlm("model.depth=64", *sets), rig) for sets in ((), ("stages.pretrain.precision=fp8",)))
    assert quick.fits
    assert (quick.layout.shard, quick.layout.precision) == ("full", "fp8")
    assert "compute_weights" not in quick.components
    assert quick.tokens_per_second > plain.tokens_per_second


@pytest.mark.parametrize(
    ("sets", "change", "why"),
    [
        (("layout.shard=optimizer",), "layout.shard=full", "each of 8 ranks holds all weights and gradients"),
        (("stages.pretrain.graphs=true",), "stages.pretrain.graphs=auto", "each of 8 ranks holds"),
    ],
)
def test_whole_weights_that_do_not_fit_name_what_would(sets: tuple[str, ...], change: str, why: str) -> None:
    plan = make_plan(charlm("model.depth=64", *sets), parse_rig("8xH100"))
    assert not plan.fits
    assert why in plan.reasons[0]
    assert any(change in alternative.change for alternative in plan.alternatives)


def test_what_is_too_large_even_shared_is_refused_for_its_memory() -> None:
    plan = make_plan(charlm("model.depth=128"), parse_rig("8xH100"))
    assert not plan.fits
    (reason,) = plan.reasons
    assert "103.1 B parameters" in reason
    assert "shared over 8 ranks already" in reason
    assert "gradients" in reason, "the arithmetic, part by part"
    assert f"the limit is {plan.limit_gib:.1f} GiB" in reason
    depth = int(next(a.change for a in plan.alternatives if "model.depth" in a.change).split("depth=")[1].split()[0])
    assert 64 < depth < 128
    assert make_plan(charlm(f"model.depth={depth}"), parse_rig("8xH100")).fits
    assert not make_plan(charlm(f"model.depth={depth + 2}"), parse_rig("8xH100")).fits, "the largest that fits"


@pytest.mark.parametrize(
    ("source", "sets", "key", "fix"),
    [
        ("charlm", (FULL, "stages.pretrain.graphs=true"), "not recorded", "graphs=auto"),
        ("charlm", ("layout.shard=none",), "layout.shard: none", "layout.shard=optimizer"),
        ("trm", (FULL,), "layout.shard: full", "layout.shard=optimizer"),
    ],
)
def test_what_is_not_done_is_refused_by_name(source: str, sets: tuple[str, ...], key: str, fix: str) -> None:
    recipe = load_recipe(source, ["model.depth=8", *sets])
    with pytest.raises(UserError, match=key) as error:
        make_plan(recipe, parse_rig("8xH100"))
    assert fix in (error.value.fix or "")


@pytest.mark.parametrize("rig", ["H100", "cpu@$0"])
def test_one_rank_has_nobody_to_share_with(rig: str) -> None:
    alone, named = (make_plan(charlm("model.depth=8", *sets), parse_rig(rig)) for sets in ((), (FULL,)))
    assert named.layout == alone.layout
    assert named.peak_gib == alone.peak_gib
