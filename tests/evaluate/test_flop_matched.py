"""FLOPs-matched baselines: models of the same FLOPs, the exponent, and verdicts."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flop_matched_reports import HONEST, LENGTH, made, recipe_of, report_on

from windtunnel.evaluate import (
    Comparison,
    Length,
    comparison_columns,
    comparison_remarks,
    comparison_rows,
    flop_matched_members,
    weigh,
)
from windtunnel.evaluate.bootstrap import draw_clusters
from windtunnel.evaluate.recurrence_fit import Phi, Plain, Recurrent, fit_phi
from windtunnel.model import derive
from windtunnel.recipe import Recipe, UserError

pytestmark = pytest.mark.end_to_end

# --- twins ---


@pytest.mark.parametrize(
    ("name", "sets", "vocab"),
    [
        ("trm", (), 8193),
        ("trm", ("model.depth=4", "model.aspect=32", "model.head_dim=32", "model.sequence=128"), 300),
        ("trm", ("model.depth=1", "model.aspect=16", "model.head_dim=16", "model.sequence=32"), 18),
        ("trm", ("trm.scheme=looped", "trm.loops=3", "trm.supervision=1", "model.depth=6", "model.value_embeddings=true"), 8193),
        ("trm", ("model.kv_heads=2", "model.mlp=relu2"), 50_000),
        ("trm", ("trm.cycles=3", "trm.gradient_cycles=last", "trm.loops=6", "trm.supervision=8", "model.depth=3"), 4096),
        ("trm-sudoku", (), 11),
    ],
)
def test_twins_have_the_same_flops_or_the_same_blocks(name: str, sets: tuple[str, ...], vocab: int) -> None:
    recipe = recipe_of(name, *sets)
    own, same_parameters, between, same_flops, *fewer = flop_matched_members(recipe, vocab, LENGTH)
    assert abs(same_flops.shape.flops_per_token / own.shape.flops_per_token - 1) <= 0.03
    assert replace(own.shape, recursion=None) == replace(same_parameters.shape, recursion=None)
    flops = [m.shape.flops_per_token for m in (same_parameters, between, same_flops)]
    assert flops == sorted(flops)
    for plain in (same_parameters, between, same_flops):
        assert plain.recurrences == 1
    for member in fewer:
        assert 1 < member.recurrences < own.recurrences
        assert replace(member.shape, recursion=None) == replace(own.shape, recursion=None)
    assert len({m.name for m in (own, same_parameters, between, same_flops, *fewer)}) == 4 + len(fewer)


def test_members_share_data_seed_length_and_rules() -> None:
    recipe = recipe_of("trm", "trm.preset=extreme", "trm.ema=0.99", "layout.recompute=step")
    members = flop_matched_members(recipe, 300, LENGTH)
    for member in members:
        # What is written to a run folder must be a recipe that can be read.
        again = Recipe.model_validate(member.recipe.model_dump(mode="json"))
        assert again.data == recipe.data
        assert again.seed == recipe.seed
        assert again.budget.steps == 100
        assert again.pretrain.batch_tokens == 4096
        assert again.pretrain.optimizer.clip == recipe.pretrain.optimizer.clip
        assert again.trm is not None  # averaged weights for all
        assert again.trm.ema == 0.99
        # The preset's low rate is the recursion's; a plain model has a plain recipe's.
        assert again.pretrain.optimizer.matrix_lr == (None if member.kind == "plain" else 0.0005)


def test_what_is_derived_is_the_same_rate_for_plain_models() -> None:
    own, *others = flop_matched_members(recipe_of("trm", "stages.pretrain.batch_tokens=8192"), 300, LENGTH)
    plain = [derive(member.recipe, 300).matrix_lr.value for member in others if member.kind == "plain"]
    assert plain
    assert set(plain) == {derive(own.recipe, 300).matrix_lr.value}


def test_rates_that_the_recipe_names_are_everyones() -> None:
    recipe = recipe_of("trm", "stages.pretrain.optimizer.matrix_lr=0.004", "trm.preset=extreme")
    assert {m.recipe.pretrain.optimizer.matrix_lr for m in flop_matched_members(recipe, 300, LENGTH)} == {0.004}


def trained_tokens(recipe: Recipe) -> int:
    return (recipe.budget.steps or 0) * (recipe.pretrain.batch_tokens or 0)


@pytest.mark.parametrize(("rows", "ranks", "parts"), [(16, 1, 8), (12, 1, 6), (16, 4, 4), (7, 1, 7), (3, 1, 3), (2, 2, 1)])
def test_all_make_as_many_updates_as_the_run_or_as_many_as_whole_sequences_allow(rows: int, ranks: int, parts: int) -> None:
    recipe = recipe_of("trm-sudoku", "trm.supervision=8", "checkpoints.every=50 steps")
    own, *others = flop_matched_members(recipe, 11, Length(100, rows * 81, "fp32", ranks))
    assert (own.updates, own.recipe.pretrain.batch_tokens) == (800, rows * 81)
    for member in others:
        stage, whole = member.recipe.pretrain, member.name == "same-flops-whole-batches"
        assert trained_tokens(member.recipe) == trained_tokens(own.recipe)
        assert (stage.batch_tokens or 0) % (81 * ranks) == 0
        cut = (member.recipe.budget.steps or 0) // 100
        if member.kind == "plain":
            assert cut == (1 if whole else parts)
            assert member.updates == 100 * cut
        else:
            assert member.updates <= own.updates
        # As often as the run's, in tokens.
        assert stage.validate_every.steps == 200 * cut
        assert member.recipe.checkpoints.every.steps == 50 * cut
        assert stage.schedule.warmup_steps == 40 * cut
    twice = [m.shape for m in others if m.name.startswith("same-flops")]
    assert len(twice) == (2 if parts > 1 else 1)
    assert len(set(twice)) == 1


def test_what_the_verdict_takes_is_trained_first() -> None:
    members = flop_matched_members(recipe_of("trm-sudoku"), 11, Length(100, 16 * 81, "fp32"))
    comparison = Comparison(Path(), members, Length(100, 16 * 81, "fp32"), True, None, 1.0, ())
    names = [m.name for m in comparison.by_weight]
    assert names[:4] == ["recursive", "same-flops", "same-flops-whole-batches", "same-parameters"]
    assert sorted(names) == sorted(m.name for m in members)


def test_an_update_a_batch_leaves_batches_as_they_are() -> None:
    members = flop_matched_members(recipe_of("trm"), 300, Length(100, 8192, "fp32"))
    assert {m.recipe.pretrain.batch_tokens for m in members} == {8192}
    assert {m.updates for m in members} == {100}


def test_plain_models_are_refused() -> None:
    with pytest.raises(UserError, match="no recursion to weigh"):
        flop_matched_members(recipe_of("charlm", "model.depth=2"), 20, LENGTH)
    once = recipe_of("trm", "trm.scheme=looped", "trm.loops=1", "trm.supervision=1")
    with pytest.raises(UserError, match="applies its blocks once"):
        flop_matched_members(once, 20, LENGTH)


# --- phi ---

TARGETS = np.full(400, 50.0)


def synthetic(
    phi: float, noise: float = 0.02, sizes: tuple[float, ...] = (1e6, 3e6, 1e7, 3e7)
) -> tuple[list[Plain], list[Recurrent]]:
    """Losses of the paper's form in 400 units, with the units' own difficulty and independent noise."""
    dice = np.random.default_rng(3)
    hard = dice.normal(0, 0.3, len(TARGETS))

    def nats(parameters: float) -> np.ndarray:
        loss = 1.7 + 400 * parameters**-0.35
        return (loss + hard + dice.normal(0, noise, len(TARGETS))) * TARGETS

    plain = [Plain(n, nats(n)) for n in sizes]
    recurrent = [Recurrent(r, 2e5, 8e5, nats(2e5 + r**phi * 8e5)) for r in (2, 4, 12)]
    return plain, recurrent


@pytest.mark.parametrize("phi", [0.2, 0.46, 0.8])
def test_a_known_phi_is_found_again(phi: float) -> None:
    plain, recurrent = synthetic(phi)
    found = fit_phi(plain, recurrent, TARGETS, draw_clusters(400, 1000, seed=0))
    assert found.bound == "="
    assert found.value == pytest.approx(phi, abs=0.05)
    assert found.low is not None
    assert found.high is not None
    assert found.low < phi < found.high
    assert found.high - found.low < 0.15
    assert list(found.equivalent) == [2, 4, 12]


def test_outside_the_plain_models_there_is_a_bound() -> None:
    worse = fit_phi(*synthetic(-0.4), TARGETS, draw_clusters(400, 1000, seed=0))
    assert worse.value == pytest.approx(0, abs=1e-6)  # the smallest plain model is the blocks once
    assert (worse.bound, worse.low) == ("<=", None)
    assert "worse than the smallest" in worse.words
    better = fit_phi(*synthetic(0.9, sizes=(1e6, 1.5e6, 2e6)), TARGETS, draw_clusters(400, 1000, seed=0))
    assert (better.bound, better.high) == (">=", None)
    assert better.value is not None
    assert better.value < 0.9


def test_what_the_data_do_not_tell_is_not_told() -> None:
    plain, recurrent = synthetic(0.5)
    assert fit_phi(plain[:2], recurrent, TARGETS, draw_clusters(400, 1000, seed=0)).value is None
    assert fit_phi(plain, [], TARGETS, draw_clusters(400, 1000, seed=0)).value is None
    turned = [Plain(p.parameters, q.nats) for p, q in zip(plain, reversed(plain), strict=True)]
    found = fit_phi(turned, recurrent, TARGETS, draw_clusters(400, 1000, seed=0))
    assert found.value is None
    assert "no curve" in found.words
    # Noise as large as the differences: no interval that pretends otherwise.
    wide = fit_phi(*synthetic(0.5, noise=5.0), TARGETS, draw_clusters(400, 1000, seed=0))
    assert wide.low is None or wide.high is None or wide.high - wide.low > 0.5


# --- reports ---


def test_the_verdict_is_of_equal_flops() -> None:
    report = report_on(HONEST)
    assert "the plain model is better by 0.20 nats" in report.verdict
    assert "does not pay" in report.verdict
    assert not report.spoilt
    pays = report_on({**HONEST, "same-flops": [2.3]})
    assert "the recursive model is better by 0.30 nats" in pays.verdict
    assert pays.verdict.endswith("here recursion pays.")
    same = report_on({**HONEST, "same-flops": [2.0]})
    assert "cannot be told" in same.verdict


def test_a_gain_may_come_of_more_updates() -> None:
    members, measured = made({**HONEST, "same-flops": [2.3]}, None)
    members[0] = replace(members[0], recipe=recipe_of("trm", "trm.updates=each", "trm.supervision=3"))
    report = weigh(members, measured, run="test", units="documents", preset="honest", uniform=math.log(20))
    assert "better by 0.30 nats" in report.verdict
    assert report.verdict.endswith("here recursion, or its 3 updates for each of the plain one's, pays.")


@pytest.mark.parametrize("whole", [1.7, 2.4])
def test_the_verdict_is_against_the_better_twin_and_phi_without_the_other(whole: float) -> None:
    members, measured = made({**HONEST, "same-flops": [2.3]}, None)
    before = weigh(members, measured, run="test", units="documents", preset="honest", uniform=math.log(20))
    twin = next(m for m in members if m.name == "same-flops")
    again = replace(twin, name="same-flops-whole-batches")
    nats = measured["same-flops"].nats + 40 * (whole - 2.3)
    measured[again.name] = replace(measured["same-flops"], nats=nats)
    report = weigh([*members, again], measured, run="test", units="documents", preset="honest", uniform=math.log(20))
    expected = "the plain model is better by 0.30" if whole < 2 else "the recursive model is better by 0.30"
    assert expected in report.verdict
    assert report.phi == before.phi


def test_models_that_have_only_memorised_get_no_verdict() -> None:
    """On held-out data a larger model that has memorised is worse: that is no merit of the smaller."""
    report = report_on({name: [loss + 5 for loss in losses] for name, losses in HONEST.items()})
    assert report.verdict.startswith("No verdict")
    assert "pays" not in report.verdict


def test_differences_are_paired() -> None:
    """Units differ by far more than models do; the interval of a difference is that of the models alone."""
    row = next(r for r in report_on(HONEST).rows if r.name == "same-flops")
    assert row.behind.value == pytest.approx(-0.2, abs=0.02)
    assert row.behind.high - row.behind.low < 0.03
    assert row.loss.high - row.loss.low > 0.08


def test_puzzles_are_judged_by_what_is_solved() -> None:
    solved = {"recursive": 0.8, "same-parameters": 0.1, "between": 0.2, "same-flops": 0.3, "recurrence-2": 0.5}
    report = report_on(HONEST, solved)
    assert "percentage points of puzzles solved" in report.verdict
    assert "here recursion pays" in report.verdict
    assert "solved" in comparison_columns(report)
    assert report.rows[0].bits_per_byte is None


def test_a_report_is_json_and_fits_a_terminal() -> None:
    report = report_on(HONEST)
    found = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert found["models"][0]["step_losses"] == pytest.approx([2.2, 2.1, 2.0], abs=0.1)
    rows = comparison_rows(report)
    widths = [max(len(row[i]) for row in [comparison_columns(report), *rows]) for i in range(len(rows[0]))]
    assert sum(widths) + 3 * len(widths) <= 100
    assert comparison_remarks(report)[0][0] == "verdict"


def test_as_many_digits_as_set_steps_apart() -> None:
    report = report_on(HONEST)
    own = replace(report.rows[0], step_losses=(6.10341, 6.10333, 6.10329, 6.10318))
    words = dict(comparison_remarks(replace(report, rows=(own, *report.rows[1:]))))["by step"]
    assert words.startswith("6.10341 > 6.10333 > 6.10329 > 6.10318 nats")


def test_phi_keeps_its_json() -> None:
    assert Phi(None, "=", None, None, {2: 3.0}, "why").to_json()["equivalent"] == {"2": 3.0}
