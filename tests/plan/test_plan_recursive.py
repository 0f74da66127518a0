"""Plans of recursive GPTs: every pass is counted, what is kept at once, what is computed again, and refusals that help."""

from dataclasses import replace

import pytest

from windtunnel.model import recipe_shape
from windtunnel.plan import Plan, lines, make_plan
from windtunnel.plan.gpt_work import joined_steps, passes_of
from windtunnel.recipe import Recipe, UserError, load_recipe, scale_model, scale_stages, stage_recipe, validate
from windtunnel.rig import parse_rig

VOCAB = 50_304
SEED = ("stages.pretrain.batch_tokens=65536", "model.mlp_ratio=4")
"""The phase-1 shape that the job comes from: d12, 64 sequences of 1,024 on a GPU, hidden width 4 x dim."""


def trm(*sets: str) -> Recipe:
    """The first stage."""
    return stage_recipe(load_recipe("trm", sets), "validation")


def plan(*sets: str, rig: str = "H100", vocab: int = VOCAB) -> Plan:
    return make_plan(trm(*sets), parse_rig(rig), vocab=vocab)


def test_the_seeds_shape_runs_in_80_gb_and_the_plan_says_how() -> None:
    made = plan(*SEED)
    assert made.fits
    assert (made.layout.micro_batch, made.layout.recompute) == (16, "none")
    note = next(note for note in made.notes if "nothing recomputed" in note)
    assert "micro-batch 32 with nothing recomputed would need 78" in note
    assert "144 applications" in made.model
    whole = plan(*SEED, "stages.pretrain.micro_batch=32")
    assert whole.fits
    assert whole.layout.recompute == "step"
    assert "supervision steps recomputed" in whole.layout.describe()


def test_what_overflows_is_refused_with_the_arithmetic_and_the_nearest_that_works() -> None:
    asked = (*SEED, "stages.pretrain.micro_batch=32", "layout.recompute=none", "trm.supervision=8", "trm.detach_from=64")
    made = plan(*asked)
    assert not made.fits
    assert "12 blocks x 3 passes x 8 supervision steps = 288 applications" in made.reasons[0]
    assert "activations" in made.reasons[0]
    changes = [alternative.change for alternative in made.alternatives]
    assert changes[0] == "--set layout.recompute=step"
    assert {"--set trm.detach_from=0", "--set stages.pretrain.micro_batch=null"} <= set(changes)
    for change in changes:
        if "--rig" not in change:
            assert plan(*asked, change.removeprefix("--set ")).fits, change
    fewer = plan(*SEED, "stages.pretrain.micro_batch=32", "layout.recompute=none", "trm.supervision=8", "trm.loops=8")
    assert any(a.change.startswith("--set trm.loops=") for a in fewer.alternatives)


def test_passes_count_applications_gradients_and_what_is_kept() -> None:
    def passes(*sets: str):
        recipe = trm(*sets)
        return passes_of(recipe, recipe_shape(recipe, VOCAB))

    usual = passes()
    assert (usual.applications, usual.graded, usual.heads, usual.joined) == (12 * 3 * 4, 12 * 3 * 4, 4, 3)
    assert usual.kept("none") == 3 * 36
    assert (usual.kept("step"), usual.borders("step")) == (36, 3 * 2)
    assert (usual.kept("block"), usual.borders("block")) == (1, 3 * 36)
    blind = passes("trm.cycles=3", "trm.gradient_cycles=last", "trm.updates=each", "trm.ema=0.999")
    assert (blind.applications, blind.graded, blind.joined, blind.updates, blind.averaged) == (12 * 9 * 4, 12 * 3 * 4, 1, 4, True)
    stack = passes("trm.scheme=looped", "trm.detach_from=64")
    assert (stack.applications, stack.combined, stack.joined) == (12 * 2 * 4, 0, 4)
    assert (stack.kept("block"), stack.borders("block")) == (12, 4 * 2)
    assert [joined_steps(4, start) for start in (0, 1, 2, 3, 64)] == [1, 2, 3, 4, 4]


def test_looping_once_is_planned_as_the_plain_gpt() -> None:
    once = ("trm.scheme=looped", "trm.loops=1", "trm.supervision=1", "stages.pretrain.micro_batch=8", "layout.recompute=none")
    looped = plan(*once, "stages.pretrain.graphs=false")
    plain = make_plan(trm(*once[3:4]).model_copy(update={"trm": None}), parse_rig("H100"), vocab=VOCAB)
    assert looped.step_seconds == pytest.approx(plain.step_seconds)
    assert looped.mfu == pytest.approx(plain.mfu)
    assert looped.peak_gib == pytest.approx(plain.peak_gib, rel=0.02)
    assert looped.hours == pytest.approx(plain.hours)


def test_time_grows_with_every_pass_and_mfu_stays() -> None:
    fixed = ("stages.pretrain.micro_batch=8",)
    four, eight = plan(*fixed, "trm.supervision=4"), plan(*fixed, "trm.supervision=8")
    assert eight.step_seconds / four.step_seconds == pytest.approx(2, rel=0.05)
    assert eight.mfu == pytest.approx(four.mfu, rel=0.05)
    assert eight.dollars is not None
    assert four.dollars is not None
    assert eight.dollars > 1.8 * four.dollars


def test_recomputation_takes_time_but_no_mfu_for_it_and_saves_memory() -> None:
    kept, step, block = (plan("stages.pretrain.micro_batch=16", f"layout.recompute={how}") for how in ("none", "step", "block"))
    assert kept.peak_gib > step.peak_gib > block.peak_gib
    assert kept.step_seconds < step.step_seconds
    assert kept.step_seconds * kept.mfu == pytest.approx(step.step_seconds * step.mfu), "the model's FLOPs are the same"


def test_what_is_computed_again_is_held_in_the_backward_pass_only() -> None:
    for how in ("none", "step", "block"):
        made = plan("stages.pretrain.micro_batch=16", f"layout.recompute={how}")
        moments = {moment.name: moment.components for moment in made.timeline}
        forward, backward = (moments[name]["activations"] for name in ("forward", "backward"))
        if how == "none":
            assert forward == backward
        else:
            assert forward < 0.1 * backward


def test_small_steps_are_bound_by_the_host_whatever_their_size() -> None:
    launched = ("layout.recompute=none", "stages.pretrain.graphs=false")
    fixed = (*launched, "stages.pretrain.batch_tokens=16384")
    once = plan(*launched, "stages.pretrain.batch_tokens=8192", "stages.pretrain.micro_batch=8", rig="H200")
    smaller = plan(*launched, "stages.pretrain.batch_tokens=4096", "stages.pretrain.micro_batch=4", rig="H200")
    assert once.bound == smaller.bound == "kernel launches"
    assert once.step_seconds == smaller.step_seconds
    twice = plan(*fixed, "stages.pretrain.micro_batch=8", rig="H200")
    assert twice.step_seconds / once.step_seconds == pytest.approx(2, rel=0.03), "each micro-batch's kernels are launched"
    large = plan("layout.recompute=step", "stages.pretrain.batch_tokens=32768", "stages.pretrain.micro_batch=32", rig="H200")
    assert large.bound != "kernel launches"
    assert once.error["time"] > large.error["time"], "the host's speed is known less well than the GPU's"


def test_updates_after_each_step_and_averages_cost_what_they_do() -> None:
    once = plan("stages.pretrain.micro_batch=8", "trm.detach_from=0")
    each = plan("stages.pretrain.micro_batch=8", "trm.updates=each", "trm.ema=0.999")
    assert each.step_terms["optimizer"] == pytest.approx(4 * once.step_terms["optimizer"])
    assert each.components["averaged_weights"] == pytest.approx(4 * each.params / 2**30)
    assert each.checkpoint_gib == pytest.approx(once.checkpoint_gib + 4 * each.params / 2**30)
    assert each.components["states"] > once.components["states"], "states of all micro-batches wait for the update"
    ranks = plan("trm.updates=each", rig="8xH100").step_terms["communication"]
    assert ranks == pytest.approx(4 * plan(rig="8xH100").step_terms["communication"])


def test_cycles_without_gradient_cost_a_third_and_are_not_kept() -> None:
    fixed = ("stages.pretrain.micro_batch=8", "trm.cycles=3")
    whole, last = plan(*fixed), plan(*fixed, "trm.gradient_cycles=last")
    assert last.components["activations"] < 0.4 * whole.components["activations"]
    expected = (1 + 2 / 3) / 3
    assert last.step_terms["attention"] == pytest.approx(expected * whole.step_terms["attention"])


def test_recomputation_is_refused_where_nothing_recurses() -> None:
    for name in ("charlm", "sft"):
        with pytest.raises(UserError, match=r"layout\.recompute.step is for recursive models"):
            make_plan(load_recipe(name, ["layout.recompute=step"]), parse_rig("8xH100"))
    with pytest.raises(UserError, match=r"layout\.recompute: block"):
        make_plan(load_recipe("charlm", ["layout.recompute=block"]), parse_rig("8xH100"))


def test_puzzles_are_counted_and_no_epoch_of_them_is_a_repetition() -> None:
    made = make_plan(load_recipe("trm-sudoku"), parse_rig("H100"))
    assert made.vocab == 10
    assert made.fits
    assert made.corpus_tokens == pytest.approx(50_000 * 81 * 0.98)
    assert not made.needs_yes
    assert not made.warnings
    assert made.layout.sequence == 81


def test_attention_that_sees_everything_takes_twice_the_causal_time() -> None:
    recipe = load_recipe("trm-sudoku", ["stages.pretrain.micro_batch=32"])
    shape = recipe_shape(recipe, 10)
    from windtunnel.plan.gpt_steptime import attention_flops

    assert attention_flops(shape) == 2 * attention_flops(replace(shape, causal=True))


@pytest.mark.parametrize("name", ["trm", "trm-sudoku"])
def test_scale_models_recurse_a_little_and_load(name: str) -> None:
    recipe = load_recipe(name)
    small = scale_model(recipe)
    assert validate(small.model_dump(mode="json"), "small") == small
    assert small.trm is not None
    given = stage_recipe(recipe, "quality").trm if recipe.staged else recipe.trm
    assert given is not None
    for kept in ("scheme", "updates", "halting", "gradient_cycles", "ema"):
        assert getattr(small.trm.resolved, kept) == getattr(given.resolved, kept)
    assert small.trm.supervision <= 3
    assert not small.staged
    assert small.gpt.depth == 2
    assert make_plan(small, parse_rig("cpu")).layout.micro_batch == 8


def test_scaled_stages_keep_their_objectives_and_ask_for_nothing() -> None:
    recipe = load_recipe("trm")
    small = scale_stages(recipe, steps=24)
    assert validate(small.model_dump(mode="json"), "small") == small
    assert [stage.name for stage in small.training] == ["validation", "quality"]
    for stage in recipe.training:
        whole, toy = stage_recipe(recipe, stage.name), stage_recipe(small, stage.name)
        assert toy.budget.steps == 24
        assert toy.trm is not None
        assert whole.trm is not None
        assert toy.trm.resolved.weight_base == whole.trm.resolved.weight_base
        assert (toy.trm.resolved.detach_from < 2) == (whole.trm.resolved.detach_from < 3), "a boundary before the last step"
    gates = small.training[0].gates
    assert gates is not None
    assert (gates.order, gates.decreasing) == (False, False)
    assert (gates.refinement, gates.gradient_norm, gates.utilisation) == (None, None, None)


def test_rows_name_the_model_and_what_recursion_keeps() -> None:
    made = plan("trm.ema=0.99")
    rows = {label.strip(): (value, source) for label, value, source in lines(made)}
    assert "states" in rows
    assert "averaged weights" in rows
    assert all(source for label, (_, source) in rows.items() if label in ("states", "averaged weights", "activations"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "sets",
    [
        (),
        ("layout.recompute=step",),
        ("layout.recompute=block",),
        ("trm.cycles=2", "trm.gradient_cycles=last"),
        ("trm.scheme=two_latent",),
        ("trm.scheme=looped",),
        ("model.mlp=relu2",),
    ],
)
def test_a_trace_of_the_real_model_agrees(sets: tuple[str, ...]) -> None:
    from windtunnel.launch import trace_plan

    small = ("model.depth=3", "model.aspect=256", "stages.pretrain.batch_tokens=16384", "stages.pretrain.micro_batch=8")
    recipe = trm(*small, *sets)
    opinion = trace_plan(recipe, make_plan(recipe, parse_rig("H100"), vocab=8192))
    assert abs(opinion.difference) < 0.1
