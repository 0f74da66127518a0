"""Plans of recursive GPTs whose passes are recorded as CUDA graphs: what they save of time, take of memory, and say."""

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from windtunnel.model import recipe_shape
from windtunnel.plan import Layout, Plan, load_constants, make_plan, observe
from windtunnel.recipe import Recipe, load_recipe, stage_recipe
from windtunnel.rig import parse_rig

VOCAB = 32_768
SMALL = ("stages.pretrain.batch_tokens=8192", "stages.pretrain.micro_batch=8", "layout.recompute=none")
BOUND_BY_THE_GPU = ("stages.pretrain.batch_tokens=32768", "stages.pretrain.micro_batch=32", "layout.recompute=step")
LAUNCHED = "stages.pretrain.graphs=false"


def trm(*sets: str) -> Recipe:
    """The first stage."""
    return stage_recipe(load_recipe("trm", sets), "validation")


def plan(*sets: str, rig: str = "H200") -> Plan:
    return make_plan(trm(*sets), parse_rig(rig), vocab=VOCAB)


def test_recorded_passes_do_not_wait_for_the_host_and_take_a_little_memory() -> None:
    recorded, launched = plan(*SMALL), plan(*SMALL, LAUNCHED)
    assert launched.bound == "kernel launches"
    assert recorded.bound != "kernel launches"
    assert recorded.step_seconds < 0.6 * launched.step_seconds
    assert {**recorded.step_terms, "kernel launches": None} == {**launched.step_terms, "kernel launches": None}
    beside = recorded.components["beside_recording"]
    assert 0 < beside < 0.1 * recorded.peak_gib
    assert recorded.peak_gib == pytest.approx(launched.peak_gib + beside, rel=0.002)
    assert recorded.peak_moment == launched.peak_moment, "the peak tells what the memory is for"
    assert "passes recorded" in recorded.layout.describe()
    # A GPT has nothing to compile on a GPU.
    assert "bf16, fused kernels; " in recorded.layout.describe()
    assert "recorded" not in launched.layout.describe()


def test_where_the_gpu_bounds_the_step_recording_changes_nothing_of_its_time() -> None:
    assert plan(*BOUND_BY_THE_GPU).step_seconds == plan(*BOUND_BY_THE_GPU, LAUNCHED).step_seconds


def test_memory_of_recorded_passes_is_never_given_back() -> None:
    recorded, launched = plan(*SMALL), plan(*SMALL, LAUNCHED)
    assert [moment.name for moment in recorded.timeline] == [moment.name for moment in launched.timeline]
    last, was = recorded.timeline[-1], launched.timeline[-1]
    assert last.name == "optimizer"
    assert last.gib == pytest.approx(recorded.peak_gib)
    assert was.gib < 0.5 * launched.peak_gib
    for component, gib in was.components.items():
        if component not in ("fragmentation", "recording", "beside_recording"):
            assert last.components[component] == pytest.approx(gib), component


def test_an_update_after_each_step_starts_a_recording_each() -> None:
    sudoku = load_recipe("trm-sudoku", ())
    each = make_plan(sudoku, parse_rig("H200"))
    launched = make_plan(load_recipe("trm-sudoku", (LAUNCHED,)), parse_rig("H200"))
    assert each.layout.recorded
    assert each.step_seconds < 0.4 * launched.step_seconds
    host = each.step_terms["kernel launches"] / load_constants("H200").launch_seconds
    assert host == pytest.approx(16 * (5 + 1)), "16 updates, each with one recording to start"
    pieces = make_plan(load_recipe("trm-sudoku", ("stages.pretrain.micro_batch=128",)), parse_rig("H200"))
    assert pieces.step_terms["kernel launches"] / load_constants("H200").launch_seconds == pytest.approx(16 * (5 + 4))


def test_auto_leaves_recording_out_where_only_its_memory_is_too_much() -> None:
    needs = plan(*SMALL, LAUNCHED).peak_gib
    constants = load_constants("H200")
    rig = parse_rig("H200")
    assert rig.gpu is not None
    share = (needs + 0.1) / rig.gpu.memory_gib
    tight = replace(constants, usable_share=share)
    made = make_plan(trm(*SMALL), rig, vocab=VOCAB, calibration=tight)
    assert made.fits
    assert not made.layout.recorded
    assert any("not recorded as CUDA graphs" in note for note in made.notes)
    insisted = make_plan(trm(*SMALL, "stages.pretrain.graphs=true"), rig, vocab=VOCAB, calibration=tight)
    assert not insisted.fits
    assert "--set stages.pretrain.graphs=auto" in [alternative.change for alternative in insisted.alternatives]
    roomy = make_plan(trm(*SMALL), rig, vocab=VOCAB, calibration=constants)
    assert not any("CUDA graphs" in note for note in roomy.notes)


def test_errors_are_those_of_recorded_passes_until_this_machine_has_been_measured() -> None:
    constants = replace(load_constants("H200"), recorded_error=0.4, recorded_memory_error=0.3)
    recipe, rig = trm(*SMALL), parse_rig("H200")
    stated = make_plan(recipe, rig, vocab=VOCAB, calibration=constants)
    assert stated.error == {"memory": 0.3, "time": 0.4}
    assert "±30%" in stated.sources["peak_gib"]
    assert "±40%" in stated.sources["step_seconds"]
    own = replace(constants, extra_gib=0.2, time_factor=1.1)
    measured = make_plan(recipe, rig, vocab=VOCAB, calibration=own)
    assert measured.error == {"memory": constants.memory_error, "time": constants.time_error}
    launched = make_plan(trm(*BOUND_BY_THE_GPU, LAUNCHED), rig, vocab=VOCAB, calibration=constants)
    assert launched.error == {"memory": constants.memory_error, "time": constants.time_error}


@pytest.mark.parametrize("graphs", ["auto", "true", "false"])
def test_on_a_cpu_nothing_is_recorded_which_is_said_where_it_was_asked_for(graphs: str) -> None:
    sets = (f"stages.pretrain.graphs={graphs}", "model.depth=2", "stages.pretrain.batch_tokens=1024")
    made = make_plan(trm(*sets), parse_rig("cpu"), vocab=VOCAB)
    assert not made.layout.recorded
    said = [text for text in (*made.notes, *made.warnings, made.layout.describe()) if "record" in text]
    assert len(said) == (graphs == "true")
    assert all(text.endswith(".graphs: true has no effect on a CPU: passes are recorded on GPUs alone") for text in said)


def test_passes_in_fp8_are_recorded_and_plain_models_are_where_that_is_asked_for() -> None:
    assert plan(*SMALL, "stages.pretrain.precision=fp8").layout.recorded
    charlm = make_plan(load_recipe("charlm", ()), parse_rig("H200"))
    assert not charlm.layout.recorded
    assert not any("record" in note for note in charlm.notes)
    sets = ("model.depth=4", "stages.pretrain.micro_batch=32")
    launched, asked = (
        make_plan(load_recipe("charlm", (*sets, f"stages.pretrain.graphs={graphs}")), parse_rig("H200"))
        for graphs in ("false", "true")
    )
    assert asked.layout.recorded
    assert not launched.layout.recorded
    assert asked.step_seconds <= launched.step_seconds
    assert asked.peak_gib > launched.peak_gib
    wide = make_plan(load_recipe("charlm", ("model.depth=12", "stages.pretrain.graphs=true")), parse_rig("H200"))
    assert any("narrower ones alone" in note for note in wide.notes)
    assert not any("narrower" in note for note in asked.notes)


def test_fp8_moves_more_and_says_that_less_is_known_of_it() -> None:
    sets = ("model.depth=12", *BOUND_BY_THE_GPU)
    bf16, fp8 = plan(*sets), plan(*sets, "stages.pretrain.precision=fp8")
    assert fp8.step_terms["matrix products"] < bf16.step_terms["matrix products"]
    assert fp8.step_terms["memory bandwidth"] > 1.1 * bf16.step_terms["memory bandwidth"], "quantising reads and writes"
    assert fp8.error["time"] >= load_constants("H200").fp8_error > bf16.error["time"]
    plain = make_plan(load_recipe("charlm", ("model.depth=24", "stages.pretrain.precision=fp8")), parse_rig("H200"))
    assert plain.error["time"] == load_constants("H200").time_error, "of plain GPTs fp8 is among what was fitted to"


def test_the_last_mlps_gradients_come_on_top_of_all_that_is_kept() -> None:
    sudoku = load_recipe("trm-sudoku", ())
    made = make_plan(sudoku, parse_rig("H200"))
    assert made.peak_moment == "backward", "no vocabulary to speak of"
    moments = {moment.name: moment.components for moment in made.timeline}
    hidden = 3 * 2 * made.layout.micro_tokens * recipe_shape(sudoku, 10).hidden / 2**30
    assert moments["backward"]["activations"] == moments["loss"]["activations"]
    assert moments["backward"]["loss"] > hidden > moments["loss"]["loss"]


def test_runs_planned_before_recordings_are_still_observed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WINDTUNNEL_CALIBRATION", str(tmp_path))
    earlier = plan(*SMALL, LAUNCHED).to_json()
    earlier["layout"].pop("recorded")
    assert "recorded" in {f.name for f in fields(Layout)}
    file = observe(earlier, "H200", memory_gib=17.0, step_seconds=0.3, steps=50)
    assert file is not None
    assert file.is_file()


def text(depth: int, *sets: str) -> Recipe:
    keys = "data.tokenizer.kind=bpe", f"data.tokenizer.vocab_size={VOCAB}", "stages.pretrain.batch_tokens=262144"
    return load_recipe("charlm", [f"model.depth={depth}", "model.sequence=2048", *keys, "stages.pretrain.micro_batch=32", *sets])


@pytest.mark.parametrize(
    ("depth", "sets", "recorded"),
    [(4, (), True), (8, (), True), (12, (), False), (4, (LAUNCHED,), False), (4, ("stages.pretrain.precision=fp8",), False)],
)
def test_narrow_plain_models_are_recorded_unasked(depth: int, sets: tuple[str, ...], recorded: bool) -> None:
    assert make_plan(text(depth, *sets), parse_rig("H200"), vocab=VOCAB).layout.recorded is recorded


def test_steps_of_narrow_models_take_as_long_as_was_measured() -> None:
    results = Path(__file__).parents[2] / "benchmarks" / "results" / "throughput-small-h200.json"
    for case in json.loads(results.read_text())["cases"]:
        planned = make_plan(text(case["depth"]), parse_rig("H200"), vocab=VOCAB).tokens_per_second
        assert planned == pytest.approx(case["recorded"]["tokens_per_second"], rel=0.08), case["case"]
