"""Recursion's section of a recipe: presets and what wins over them, stages, what is refused and how."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import HANG

from windtunnel.recipe import PRESETS, Recipe, Recursion, UserError, dump_recipe, load_recipe, recipe_notes, stage_recipe

MATRIX = "stages.pretrain.optimizer.matrix_lr"
# b, s, matrix and embedding learning rate, warm-up, refinement and gradient norm as the guide has them.
TABLE = {
    "moderate": (3, 0.5, 0.002, 0.02, 100, (8, 12), (0.3, 0.8)),
    "aggressive": (5, 1, 0.001, 0.01, 150, (15, 25), (0.5, 1.5)),
    "extreme": (10, 2, 0.0005, 0.005, 200, (50, 97), (2, 15)),
}
MINIMAL = """\
name: small
model: {depth: 2, value_embeddings: false}
trm: {loops: 1}
data:
  corpus: {kind: stdlib}
"""


def refused(source: str | Path, *overrides: str) -> UserError:
    with pytest.raises(UserError) as caught:
        load_recipe(source, overrides)
    assert caught.value.exit_code == 2
    return caught.value


def written(folder: Path, text: str) -> Path:
    path = folder / "r.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def reloaded(recipe: Recipe) -> Recipe:
    with tempfile.TemporaryDirectory() as folder:
        return load_recipe(written(Path(folder), dump_recipe(recipe)))


@pytest.mark.parametrize("name", TABLE)
def test_presets_are_those_of_the_guide_and_fill_what_a_recipe_leaves_open(name: str) -> None:
    base, reward, matrix, embedding, warmup, refinement, norms = TABLE[name]
    for stage in ("validation", "quality"):
        recipe = stage_recipe(load_recipe("trm", [f"trm.preset={name}"]), stage)
        assert recipe.trm is not None
        trm, pretrain = recipe.trm.resolved, recipe.pretrain
        assert (trm.weight_base, trm.improvement_reward, trm.loops, trm.supervision) == (base, reward, 2, 4)
        assert (pretrain.optimizer.matrix_lr, pretrain.optimizer.embedding_lr) == (matrix, embedding)
        assert (pretrain.optimizer.clip, pretrain.schedule.warmup_steps) == (1.0, warmup)
        assert (PRESETS[name].refinement, PRESETS[name].gradient_norm) == (refinement, norms)
        assert recipe.gpt.mlp == "swiglu"


def test_the_honest_preset_weighs_all_steps_the_same_and_has_the_plain_models_rates() -> None:
    recipe = stage_recipe(load_recipe("trm"), "quality")
    assert recipe.trm is not None
    assert recipe.trm.preset == "honest"
    assert (recipe.trm.resolved.weight_base, recipe.trm.resolved.improvement_reward) == (1.0, 0.0)
    assert recipe.pretrain.optimizer.matrix_lr is None
    assert recipe.pretrain.schedule == load_recipe("charlm").pretrain.schedule


def test_the_shipped_stages_have_the_guides_lengths_and_batches() -> None:
    recipe = load_recipe("trm")
    first, second = (stage_recipe(recipe, name) for name in ("validation", "quality"))
    assert (first.gpt.depth, first.gpt.sequence) == (12, 1024)
    assert (first.budget.steps, first.pretrain.batch_tokens) == (1000, 512 * 1024)
    assert (second.budget.steps, second.pretrain.batch_tokens) == (5000, 256 * 1024)
    assert recipe.training[0].gates is not None
    extreme = load_recipe("trm", ["stages.quality.set.trm.preset=extreme"])
    assert [stage_recipe(extreme, p.name).trm.preset for p in extreme.training] == ["aggressive", "extreme"]
    assert recipe_notes(extreme) == []


def test_a_recipe_without_trm_is_left_alone() -> None:
    recipe = load_recipe("charlm")
    assert recipe.pretrain.optimizer.clip is None
    assert recipe_notes(recipe) == []


def test_own_values_win_over_the_preset_and_it_is_said_once() -> None:
    recipe = load_recipe("trm", ["trm.preset=extreme", "trm.weight_base=3", f"{MATRIX}=0.003", "stages={}"])
    assert recipe.trm is not None
    assert recipe.trm.resolved.weight_base == 3.0
    assert recipe.pretrain.optimizer.matrix_lr == 0.003
    assert recipe.pretrain.optimizer.embedding_lr == 0.005
    assert recipe_notes(recipe) == [
        "trm.weight_base=3 wins over preset extreme, which has 10",
        f"{MATRIX}=0.003 wins over preset extreme, which has 0.0005",
    ]


def test_more_supervision_steps_in_use_than_in_training_are_allowed_and_said() -> None:
    (note,) = recipe_notes(load_recipe("trm", ["trm.inference_supervision=8"]))
    assert note == "stage validation, quality: trm.inference_supervision=8 is beyond the 4 steps that are trained"
    assert recipe_notes(load_recipe("trm", ["trm.inference_supervision=2"])) == []


def test_set_wins_over_what_stages_set_and_it_is_said_once() -> None:
    recipe = load_recipe("trm", ["trm.preset=extreme", "trm.weight_base=3", "budget.steps=7"])
    for stage in recipe.training:
        own = stage_recipe(recipe, stage.name)
        assert own.trm is not None
        assert (own.trm.preset, own.budget.steps) == ("extreme", 7)
        assert own.pretrain.schedule.warmup_steps == 200
    notes = recipe_notes(recipe)
    assert len(notes) == len(set(notes))
    assert "stage validation: --set trm.preset=extreme wins over the stage's own aggressive" in notes
    assert "stage validation, quality: trm.weight_base=3 wins over preset extreme, which has 10" in notes


def test_set_of_one_stage_wins_over_set_of_all() -> None:
    recipe = load_recipe("trm", ["stages.quality.set.trm.preset=honest", "trm.preset=moderate", "stages.validation.set.seed=3"])
    assert [stage_recipe(recipe, p.name).trm.preset for p in recipe.training] == ["moderate", "honest"]
    assert [stage_recipe(recipe, p.name).seed for p in recipe.training] == [3, recipe.seed]


NAMES = st.none() | st.sampled_from(sorted(PRESETS))


@settings(max_examples=20)
@given(st.booleans(), NAMES, NAMES, st.none() | st.just(0.0123), st.none() | st.just(0.0321))
def test_which_rate_a_stage_has_follows_from_who_said_what(
    nested: bool, own: str | None, asked: str | None, in_stage: float | None, by_set: float | None
) -> None:
    """--set, then the stage, then the preset that is in force; loading what was dumped changes nothing."""
    lines = []
    if own is not None:
        lines.append(f"      trm: {{preset: {own}}}" if nested else f"      trm.preset: {own}")
    rates = f"    optimizer: {{matrix_lr: {in_stage}}}\n" if in_stage is not None else ""
    one = "stages:\n  one:\n    kind: pretrain\n" + rates + "    set:\n" + "\n".join(lines or ["      seed: 1"])
    text = MINIMAL + one + "\n  two: {kind: pretrain}\n"
    sets = ([f"trm.preset={asked}"] if asked else []) + ([f"{MATRIX}={by_set}"] if by_set else [])
    with tempfile.TemporaryDirectory() as folder:
        recipe = load_recipe(written(Path(folder), text), sets)
    force = asked or own or Recursion().preset
    expected = by_set or in_stage or PRESETS[force].matrix_lr
    for version in (recipe, reloaded(recipe)):
        one = stage_recipe(version, "one")
        assert one.trm is not None
        assert one.trm.preset == force
        assert one.pretrain.optimizer.matrix_lr == expected
        two = stage_recipe(version, "two").pretrain.optimizer.matrix_lr
        assert two == (by_set or PRESETS[asked or Recursion().preset].matrix_lr)
        assert ([stage.name for stage in one.training], one.stage) == (["one"], "one")
        assert stage_recipe(one, "one") == reloaded(one) == one
    assert reloaded(recipe) == recipe


def test_updates_after_each_step_detach_after_each_unless_said_otherwise() -> None:
    assert Recursion(preset="aggressive", updates="each").resolved.detach_from == 0
    assert Recursion(preset="aggressive").resolved.detach_from == 2
    error = refused("trm", "trm.updates=each", "trm.detach_from=2")
    assert "trm.detach_from=2" in error.message
    assert error.fix == "--set trm.detach_from=0, or trm.updates=once"


@pytest.mark.parametrize(
    ("override", "says", "fix"),
    [
        ("model.value_embeddings=true", "no value embeddings", "model.value_embeddings=false"),
        ("trm.halting=true", "not causal", "trm.halting=false"),
        ("model.causal=false", "data.corpus.kind is stdlib", "data.corpus.kind=sudoku"),
        ("data.corpus.kind=sudoku", "whole grid", "model.causal=false"),
        ("trm.loops=0", "at least 1", None),
        ("trm.preset=extrem", "nearest: extreme", None),
        ("trm.lops=2", "nearest: loops", None),
        ("stages.quality.kind=validation", "expected prepare, pretrain, sft, rl or evaluate", None),
        ("stages.Quality={kind: pretrain}", "small letters", None),
        ("stages.other={}", "stages.other.kind: missing", None),
        ("stages.quality.share=2", "at most 1", None),
        ("stages.validation.init_from=previous", "no stage that trains comes before it", "random"),
        ("stages.quality.kind=sft", "needs a model of kind huggingface", None),
        ("stages.qualty.set.trm.preset=extreme", "no stage 'qualty'", "stages.quality"),
        ("stages.quality.set.trm.presett=extreme", "trm.presett: unknown key; nearest: preset", None),
        ("stages.quality.set.trm.halting=true", "(in stage quality)", "trm.halting=false"),
        ("stages.quality.set.name=other", "a stage cannot change name", "take it out"),
        ("stages.quality.gates.ordr=true", "nearest: order", None),
        ("stages.quality.gates.gradient_norm=[2, 1]", "[lowest, highest]", None),
        ("stages.quality=extreme", "expected a section", None),
        ("stages.7.seed=1", "no stage '7'", "stages: validation, quality"),
        ("stages.quality.set.budget.steps=5", "cannot change budget.steps here", "stages.quality.budget.steps"),
        ("phases.quality.set.seed=1", "there are no phases any more", "stages.quality.set.seed"),
        ("stages.quality.set=3", "expected a section of keys", None),
        ("stages.quality.set.trm=3", "expected a section of keys (got 3) (in stage quality)", None),
        ("stages=[3]", "stages: expected a section of keys", None),
        ("stage=qualitee", "no stage 'qualitee'", None),
    ],
)
def test_what_does_not_go_together_is_refused_with_its_fix(override: str, says: str, fix: str | None) -> None:
    error = refused("trm", override)
    assert says in error.message
    assert fix is None or fix in (error.fix or "")


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (["model.causal=false", "model.sequence=81"], None),
        (["model.causal=false", "model.sequence=80"], "81 cells"),
        (["model.causal=false", "model.sequence=81", "data.tokenizer.kind=bpe"], "data.tokenizer.kind=character"),
        (["model.causal=false", "model.sequence=81", "trm.halting=true"], None),
    ],
)
def test_puzzles_need_the_whole_grid(sets: list[str], says: str | None) -> None:
    start = ["data.corpus.kind=sudoku", "data.tokenizer.kind=character", "stages={}"]
    if says is None:
        assert load_recipe("trm", start + sets).gpt.sequence == 81
    else:
        assert says in str(refused("trm", *start, *sets))


@pytest.mark.parametrize(
    "keys",
    ["trm:\n        presett: extreme", "trm.presett: extreme", "trm: {presett: extreme}"],
    ids=["section", "dotted", "flow"],
)
def test_an_unknown_key_in_a_stage_is_named_with_its_line(tmp_path: Path, keys: str) -> None:
    text = MINIMAL + f"stages:\n  first: {{kind: pretrain}}\n  second:\n    kind: pretrain\n    set:\n      {keys}\n"
    path = written(tmp_path, text)
    line = next(number for number, line in enumerate(text.splitlines(), start=1) if "presett" in line)
    assert str(refused(path)) == f"{path}:{line}: trm.presett: unknown key; nearest: preset (in stage second)"


def test_a_key_under_a_plain_value_in_a_stage_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, MINIMAL + "stages:\n  first:\n    kind: pretrain\n    set:\n      model.depth.deep: 3\n")
    assert "model.depth is a value, not a section" in str(refused(path))
    path = written(tmp_path, MINIMAL + "stages:\n  first:\n    kind: pretrain\n    set:\n      seed.deep: 3\n")
    assert f"{path}:10: seed: expected a whole number (in stage first)" in str(refused(path))


def test_step_recompute_is_for_recursive_models() -> None:
    assert load_recipe("trm", ["layout.recompute=step"]).layout.recompute == "step"
    assert "recursive" in str(refused("charlm", "layout.recompute=step"))


def test_an_unknown_stage_is_refused_with_the_nearest() -> None:
    for recipe, name, hint in ((load_recipe("trm"), "qualty", "--stage quality"), (load_recipe("charlm"), "x", "pretrain")):
        with pytest.raises(UserError) as caught:
            stage_recipe(recipe, name)
        assert hint in str(caught.value.fix)


def test_stages_are_read_without_torch() -> None:
    code = (
        "import sys; from windtunnel.recipe import load_recipe, stage_recipe, recipe_notes; r = load_recipe('trm', ['seed=3']);"
        "stage_recipe(r, 'quality'); recipe_notes(r); assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=HANG, check=False).returncode == 0
