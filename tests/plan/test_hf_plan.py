"""Plans for Hugging Face models: what must be refused with its arithmetic, what must fit, and invariants over layouts."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.model import hf_shape, recipe_shape
from windtunnel.model.blocks import masked_flops
from windtunnel.plan import Plan, lines, make_plan, refuse
from windtunnel.plan.alternatives import Change
from windtunnel.plan.constants import load_hf_constants
from windtunnel.plan.finetune import FineTuning
from windtunnel.plan.plan import PLANNERS, Case, Draft
from windtunnel.recipe import Recipe, UserError, load_recipe, stage_recipe
from windtunnel.rig import load_catalog, parse_rig

FULL = "model.adapter=null"
DEEPSEEK = "model.config=deepseek-v3"
ON_ATTENTION = "model.adapter.targets=attention"


def finetune(*overrides: str) -> Recipe:
    return load_recipe("sft", overrides)


def plan(rig: str, *overrides: str) -> Plan:
    return make_plan(finetune(*overrides), parse_rig(rig))


def check_whole(made: Plan) -> None:
    """What every plan must keep to."""
    data = json.loads(json.dumps(made.to_json(), allow_nan=False))
    assert data["layout"]["data"] == made.layout.data
    assert made.fits == (not made.reasons)
    assert made.peak_gib == pytest.approx(sum(made.components.values()))
    peak = next(moment for moment in made.timeline if moment.name == made.peak_moment)
    assert peak.components == made.components
    assert all(moment.gib <= made.peak_gib * (1 + 1e-9) for moment in made.timeline)
    seconds = [moment.seconds for moment in made.timeline]
    assert seconds == sorted(seconds)
    assert 0 <= seconds[-1] <= made.step_seconds
    assert made.step_seconds == pytest.approx(sum(made.step_terms.values()) - made.hidden_seconds)
    assert made.bound in made.step_terms
    assert all(value >= 0 for value in [*made.components.values(), *made.step_terms.values()])
    assert all(f"components.{name}" in made.sources for name in made.components)
    assert made.params > 0
    assert all(label and value for label, value, _ in lines(made))


def apply(change: str) -> tuple[list[str], str | None]:
    """The --set values and the rig of an alternative."""
    import shlex

    words = shlex.split(change)
    sets = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    return sets, next((words[i + 1] for i, word in enumerate(words) if word == "--rig"), None)


def check_alternatives(made: Plan, rig: str, *overrides: str) -> None:
    assert made.alternatives
    for alternative in made.alternatives:
        sets, other = apply(alternative.change)
        # A key that is set twice counts as it was set last.
        assert plan(other or rig, *overrides, *sets).fits, alternative


@pytest.mark.parametrize(
    ("rig", "overrides"),
    [
        ("H200", ()),
        ("8xH100", (FULL,)),
        ("2x(8xH100)", (FULL, "model.config=llama-3.1-8b")),
        ("g5.xlarge", ("model.weights=fp8",)),
        ("8xH200", (DEEPSEEK, "model.weights=fp8", ON_ATTENTION)),
        ("8xH100", (FULL, "model.config=olmoe-1b-7b")),
        ("4xH100", ("model.config=qwen3-8b", FULL, "stages.sft.states=int8")),
        ("8xB200", ("model.config=qwen2.5-72b", "layout.tensor=8")),
    ],
)
def test_plans_are_whole(rig: str, overrides: tuple[str, ...]) -> None:
    made = plan(rig, *overrides)
    assert made.fits, made.reasons
    assert 0 < made.mfu < 0.7
    assert made.peak_gib <= made.limit_gib
    assert made.depth is None
    assert made.options[0].step_seconds <= made.step_seconds * 1.5
    check_whole(made)


def test_a_plan_of_data_that_are_not_here_says_that_it_is_of_one_step() -> None:
    sets = ("data.corpus={kind: conversations, files: [nowhere/*.jsonl]}", "data.tokenizer={kind: folder}")
    warned = make_plan(finetune(*sets, "budget={epochs: 2}"), parse_rig("H200"))
    assert warned.steps == 1
    assert any("how many steps 2 epochs are is not known" in warning for warning in warned.warnings)
    known = make_plan(finetune(*sets, "budget={steps: 20}"), parse_rig("H200"))
    assert known.steps == 20
    assert not any("not known" in warning for warning in known.warnings)


def test_deepseek_v3_cannot_be_fine_tuned_whole_on_one_node() -> None:
    made = plan("8xH100", DEEPSEEK, FULL)
    assert not made.fits
    reason = made.reasons[0]
    assert "671.0 B parameters" in reason
    assert "8.05 TB" in reason
    assert "0.64 TB" in reason
    assert made.params == 671_026_419_200
    check_whole(made)
    check_alternatives(made, "8xH100", DEEPSEEK, FULL)
    changes = {alternative.change for alternative in made.alternatives}
    assert any("--rig 8xH200" in change and "model.weights=fp8" in change for change in changes), "LoRA on fp8 weights, 8 x H200"
    more = next(change for change in changes if change.startswith("--rig '"))
    nodes = int(more.split("'")[1].partition("x")[0])
    assert 15 <= nodes <= 60, "NVIDIA's own recipe takes 56"
    assert any("LoRA on 5" in note for note in made.notes), "what is published is said"
    assert isinstance(refuse(made), UserError)


def test_deepseek_v3_with_frozen_fp8_weights_fits_8xh200_not_8xh100() -> None:
    one_node = (DEEPSEEK, "model.weights=fp8", ON_ATTENTION, "layout.expert=8", "layout.tensor=1", "stages.sft.micro_batch=1")
    made = plan("8xH200", *one_node)
    assert made.fits
    assert 95 <= made.peak_gib * 2**30 / 1e9 <= 130
    assert made.layout.engine == "megatron-bridge"
    assert any("not measured" in note for note in made.notes)
    small = plan("8xH100", DEEPSEEK, "model.weights=fp8", ON_ATTENTION)
    assert not small.fits
    check_alternatives(small, "8xH100", DEEPSEEK, "model.weights=fp8", ON_ATTENTION)
    four_bits = plan("8xH100", DEEPSEEK, "model.weights=int4", ON_ATTENTION)
    assert four_bits.peak_gib > 0.85 * four_bits.limit_gib, "tight"


def test_deepseek_v3_beside_experts_in_fp8_is_what_our_own_engine_trains_on_one_node() -> None:
    beside = (DEEPSEEK, "model.weights=fp8-experts", ON_ATTENTION)
    made = plan("8xH200", *beside, "stages.sft.micro_batch=1")
    assert made.fits
    check_whole(made)
    assert (made.layout.engine, made.layout.expert, made.layout.tensor) == ("windtunnel", 8, 1)
    assert made.components["experts"] * 2**30 / 1e9 == pytest.approx(81.7, abs=0.5), (
        "256 experts of 58 layers over 8, with scales"
    )
    shared_out = [plan("8xH200", *beside, "stages.sft.micro_batch=1", f"layout.expert={n}") for n in (8, 4)]
    assert [p.fits for p in shared_out] == [True, False], "twice the experts do not fit"
    assert "expert parallel" in made.step_terms
    assert not plan("8xH100", *beside).fits
    check_alternatives(plan("8xH100", *beside), "8xH100", *beside)
    assert plan("8xH200", *beside, "layout.expert=8", "layout.shard=full").fits
    mixtral = plan("2xH200", "model.config=mixtral-8x7b", *beside[1:], "layout.expert=1")
    assert "expert parallel" not in mixtral.step_terms
    for sets, word in (
        (("model.config=llama-3.1-8b", *beside[1:]), "dense"),
        ((*beside, "layout.expert=3"), "does not divide"),
        ((*beside, "stages.sft.precision=fp8"), "bf16"),
        ((*beside, "layout.tensor=2"), "no engine runs"),
    ):
        with pytest.raises(UserError, match=word):
            plan("8xH200", *sets)
    assert not plan("8xH200", *beside, FULL).fits


@pytest.mark.parametrize("rig", ["8xH200", "8xB200"])
def test_experts_in_fp8_with_sharded_attention_take_what_their_bytes_say(rig: str) -> None:
    made = plan(
        rig, DEEPSEEK, "model.weights=fp8-experts", ON_ATTENTION, "model.sequence=4096", "stages.sft.micro_batch=1",
        "layout.shard=full", "layout.recompute=block",
    )  # fmt: skip
    assert made.fits
    gb = {name: gib * 2**30 / 1e9 for name, gib in made.components.items()}
    assert gb["experts"] == pytest.approx(81.7, abs=0.1)
    assert gb["weights"] == pytest.approx(4.3, abs=0.1), "attention, tables and dense layers in bf16 over eight"
    # 61 inputs of 4,096 x 7,168 in bf16 are 3.6 GB; the rest is the block at work.
    assert 3.6 <= gb["activations"] <= 5.0


def test_answers_in_training_that_need_a_whole_copy_are_put_off() -> None:
    asked = (DEEPSEEK, "model.weights=fp8-experts", ON_ATTENTION, "stages.sft.answers.prompts=8")
    made = plan("8xH200", *asked)
    assert not made.fits
    assert made.components["answers"] > 1000
    assert made.alternatives[0].change == "--set stages.sft.answers.every=null"
    check_alternatives(made, "8xH200", *asked)


def test_deepseek_v3_adapters_on_bf16_weights_need_several_nodes() -> None:
    assert not plan("2x(8xH100)", DEEPSEEK).fits
    made = plan("5x(8xH100)", DEEPSEEK, "layout.tensor=8", "layout.pipeline=5")
    assert made.fits
    assert (made.layout.tensor, made.layout.pipeline, made.layout.data) == (8, 5, 1)
    assert plan("56x(8xH100)", DEEPSEEK, FULL).fits


@pytest.mark.parametrize("weights", ["fp8", "int8", "int4"])
def test_training_all_weights_in_few_bits_is_not_a_thing(weights: str) -> None:
    made = plan("8xH100", FULL, f"model.weights={weights}")
    assert not made.fits
    assert "not a thing" in made.reasons[0]
    changes = [alternative.change for alternative in made.alternatives]
    assert "--set model.weights=bf16" in changes
    assert any("model.adapter.rank" in change for change in changes)
    check_alternatives(made, "8xH100", FULL, f"model.weights={weights}")


def test_the_ladder_of_a_7b_model_from_one_a10g() -> None:
    for weights in ("int4", "int8", "fp8"):
        assert plan("g5.xlarge", f"model.weights={weights}").fits
    full = plan("g5.xlarge", FULL)
    assert not full.fits
    assert any("model.adapter" in alternative.change for alternative in full.alternatives)
    assert not plan("g5.12xlarge", FULL).fits
    assert plan("8xH100", FULL).fits
    assert plan("g5.12xlarge", FULL, "model.config=qwen2.5-1.5b").fits


@pytest.mark.parametrize(
    ("rig", "overrides"),
    [
        ("H100", (FULL,)),
        ("4xA10G", (FULL,)),
        ("8xH100", (FULL, "model.config=qwen2.5-72b")),
        ("RTX4090", ("model.config=qwen2.5-32b",)),
        ("2xH100", (FULL, "layout.recompute=none", "stages.sft.micro_batch=8", "layout.shard=none")),
    ],
)
def test_every_alternative_works(rig: str, overrides: tuple[str, ...]) -> None:
    made = plan(rig, *overrides)
    assert not made.fits
    check_alternatives(made, rig, *overrides)


@pytest.mark.parametrize(
    ("rig", "overrides", "says"),
    [
        ("8xH100", ("layout.tensor=3",), ("layout.tensor 3", "8 GPUs")),
        ("8xH100", ("layout.tensor=8", "layout.pipeline=2"), ("16", "8 GPUs")),
        ("2x(8xH100)", (FULL, "layout.tensor=16", "model.config=llama-3.1-8b"), ("layout.tensor", "node")),
        ("8xH100", ("layout.expert=2",), ("layout.expert", "dense")),
        ("8xH100", ("model.config=mixtral-8x7b", "layout.expert=3"), ("8 experts", "layout.expert=2")),
        ("2xH100", (FULL, "layout.offload=optimizer", "layout.shard=none"), ("offload", "shard")),
        ("2xH100", ("layout.offload=optimizer",), ("offload", "adapter")),
        ("2xH100", (FULL, "layout.offload=optimizer", "stages.sft.master=false"), ("offload", "master")),
        ("8xH100", ("layout.tensor=2", "layout.shard=full"), ("layout.shard", "optimizer")),
        ("64x(8xH100)", ("layout.pipeline=64",), ("layout.pipeline", "28 layers")),
        ("8xH100", ("stages.sft.micro_batch=64",), ("micro_batch: 64", "is more than")),
        ("H100", ("stages.sft.micro_batch=7",), ("micro_batch: 7", "does not divide")),
        ("8xA100", ("stages.sft.precision=fp8",), ("fp8", "A100")),
        ("H100", ("model.config=qwen9",), ("qwen9", "qwen")),
        ("H100", ("model.sequence=200000",), ("model.sequence", "200,000")),
    ],
)
def test_contradictions_are_refused_with_the_fix(rig: str, overrides: tuple[str, ...], says: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as error:
        plan(rig, *overrides)
    for word in says:
        assert word in str(error.value), error.value
    assert error.value.fix


def test_the_recipes_layout_is_kept() -> None:
    asked = ("layout.shard=optimizer", "layout.recompute=block", "stages.sft.micro_batch=2", FULL)
    layout = plan("8xH200", *asked).layout
    assert (layout.shard, layout.recompute, layout.micro_batch, layout.engine) == ("optimizer", "block", 2, "windtunnel")
    split = plan("8xH100", FULL, "layout.tensor=2", "layout.pipeline=2").layout
    assert (split.tensor, split.pipeline, split.data, split.engine) == (2, 2, 2, "megatron-bridge")
    assert split.batch_tokens >= 131_072
    offloaded = plan("2xH100", FULL, "layout.offload=optimizer")
    assert "optimizer_states" not in offloaded.components


@pytest.mark.parametrize("key", ["layout.shard=none", "layout.tensor=2", "layout.recompute=block", "layout.offload=optimizer"])
def test_gpts_have_only_the_layout_that_trains_them(key: str) -> None:
    with pytest.raises(UserError, match=r"layout\.") as error:
        make_plan(load_recipe("charlm", ["model.depth=12", key]), parse_rig("8xH100"))
    fix = (error.value.fix or "").removeprefix("--set ")
    assert make_plan(load_recipe("charlm", ["model.depth=12", fix]), parse_rig("8xH100")).fits


@settings(max_examples=40, deadline=None)
@given(
    model=st.sampled_from(["qwen2.5-0.5b", "qwen2.5-7b", "llama-3.1-8b", "olmo-2-7b", "qwen3-30b-a3b", "mixtral-8x7b"]),
    gpu=st.sampled_from(sorted(load_catalog().gpus)),
    count=st.integers(1, 8),
    nodes=st.integers(1, 3),
    adapter=st.booleans(),
    sequence=st.sampled_from([512, 2048, 4096]),
    batch=st.sampled_from([4096, 100_000, 1_000_000]),
)
def test_layouts_are_whole(model: str, gpu: str, count: int, nodes: int, adapter: bool, sequence: int, batch: int) -> None:
    overrides = [f"model.config={model}", f"model.sequence={sequence}", f"stages.sft.batch_tokens={batch}"]
    recipe = finetune(*overrides, *([] if adapter else [FULL]))
    count = min(count, load_catalog().gpus[gpu].max_per_node)
    made = make_plan(recipe, parse_rig(f"{nodes}x({count}x{gpu})@$1"), suggest=False)
    layout = made.layout
    assert layout.ranks == nodes * count == layout.data * layout.tensor * layout.pipeline
    assert layout.data * layout.accumulation * layout.micro_batch * sequence == layout.batch_tokens
    assert layout.batch_tokens >= min(batch, max(1, round(batch / sequence)) * sequence)
    assert (layout.data * layout.tensor) % layout.expert == 0
    check_whole(made)


def test_what_moves_memory_moves_it_the_right_way() -> None:
    fixed = (FULL, "layout.shard=full", "layout.recompute=none", "stages.sft.batch_tokens=262144")
    micro = [plan("8xH200", *fixed, f"stages.sft.micro_batch={m}").peak_gib for m in (1, 2, 4)]
    assert micro == sorted(micro)
    gpus = [plan(rig, *fixed, "stages.sft.micro_batch=1").peak_gib for rig in ("2xH200", "4xH200", "8xH200")]
    assert gpus == sorted(gpus, reverse=True)
    again = plan("8xH200", FULL, "layout.shard=full", "layout.recompute=block", "stages.sft.micro_batch=2")
    kept = plan("8xH200", FULL, "layout.shard=full", "layout.recompute=none", "stages.sft.micro_batch=2")
    assert again.components["activations"] < 0.4 * kept.components["activations"]
    assert again.step_seconds > 1.15 * kept.step_seconds
    shards = [
        plan("8xH200", FULL, f"layout.shard={s}", "stages.sft.micro_batch=1").peak_gib for s in ("full", "optimizer", "none")
    ]
    assert shards == sorted(shards)
    states = [plan("8xH200", *fixed, f"stages.sft.states={s}").components["optimizer_states"] for s in ("int8", "bf16", "fp32")]
    assert states == sorted(states)


@pytest.mark.parametrize("rig", ["8xH100", "1xH200"])
def test_held_out_answers_take_time_and_a_copy_of_the_weights(rig: str) -> None:
    off, on = plan(rig), plan(rig, "stages.sft.answers={every: 100 steps, prompts: 64, tokens: 256}")
    check_whole(on)
    assert [moment.name for moment in on.timeline] == [*(moment.name for moment in off.timeline), "answering"]
    held = on.timeline[-1].components["answers"]
    assert held >= 2 * on.params / 2**30
    assert on.peak_gib == pytest.approx(max(off.peak_gib, on.timeline[-1].gib), rel=0.02)
    seconds = on.startup["held-out answers at the end"]
    assert seconds > 0
    assert 3600 * (on.hours - off.hours) > seconds * (1 + on.steps // 100) * 0.99
    assert plan(rig, "stages.sft.answers={every: null}").startup == off.startup
    more = plan(rig, "stages.sft.answers={every: 100 steps, prompts: 640, tokens: 256}")
    assert more.startup["held-out answers at the end"] > seconds


def test_adapters_hold_no_states_of_frozen_weights() -> None:
    adapter, full = plan("H200"), plan("H200", FULL)
    assert adapter.components["optimizer_states"] < 0.01 * full.components["optimizer_states"]
    assert adapter.components["weights"] == pytest.approx(2 * adapter.params / 2**30, rel=0.01)
    fp8 = plan("H200", "model.weights=fp8").components["weights"]
    assert 0.5 < fp8 / adapter.components["weights"] < 0.65, "embedding and head stay in bf16"


def test_scaling_drops_at_the_hop_between_nodes() -> None:
    fixed = (FULL, "layout.shard=full", "layout.recompute=none", "stages.sft.micro_batch=1", "stages.sft.batch_tokens=131072")

    def speed(rig: str, network: float | None = None) -> float:
        machine = parse_rig(rig)
        machine = machine if network is None else replace(machine, network_gbs=network)
        return make_plan(finetune(*fixed), machine).tokens_per_second / machine.gpus

    inside, hop = speed("8xH100") / speed("4xH100"), speed("2x(8xH100)", network=25.0) / speed("8xH100")
    assert inside > 0.9
    assert hop < 0.7
    assert speed("2x(8xH100)") > 1.2 * speed("2x(8xH100)", network=25.0)


def test_more_dollars_buy_more_steps_until_the_epochs_end() -> None:
    money = [plan("8xH100@$2.50", FULL, f"budget.dollars={d}") for d in (3, 6, 1000)]
    assert [made.ended_by for made in money] == ["budget.dollars", "budget.dollars", "budget.epochs"]
    assert money[0].steps < money[1].steps < money[2].steps
    assert money[2].epochs == pytest.approx(2, rel=0.01)
    assert money[2].dollars == pytest.approx(money[2].hours * 20)
    short = plan("8xH100@$2.50", FULL, "budget.dollars=0.10")
    assert not short.fits
    assert "before the first step" in short.reasons[0]
    assert plan("8xH100@$2.50", FULL, short.alternatives[0].change.removeprefix("--set ")).fits


def test_options_are_ranked_by_what_they_cost() -> None:
    made = plan("8xH100@$2.50", FULL)
    dollars = [option.dollars for option in made.options]
    assert len(dollars) > 2
    assert all(d is not None for d in dollars)
    assert dollars == sorted(dollars, key=lambda d: d or 0.0)
    assert made.layout in [option.layout for option in made.options]


def test_a_models_own_config_file(tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 4, "vocab_size": 1000, "max_position_embeddings": 2048,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    made = plan("H100", f"model.config={path}", "model.sequence=1024", FULL)
    assert made.fits
    assert made.params < 5_000_000
    path.write_text(json.dumps(config | {"model_type": "mamba2"}))
    with pytest.raises(UserError, match="mamba2"):
        plan("H100", f"model.config={path}")


def test_671_billion_on_256_gpus_is_planned_without_torch() -> None:
    code = (
        "import sys; from windtunnel.plan import make_plan; from windtunnel.rig import parse_rig;"
        "from windtunnel.recipe import load_recipe;"
        "r = load_recipe('sft', ['model.config=deepseek-v3', 'model.adapter=null']);"
        "p = make_plan(r, parse_rig('32x(8xH100)')); assert p.fits and p.layout.ranks == 256;"
        "q = make_plan(r, parse_rig('8xH100')); assert not q.fits and q.alternatives;"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("model", ["gpt-oss-20b", "gemma-2-9b"])
def test_capped_scores_and_sinks_are_planned_for_one_gpu(model: str) -> None:
    made = plan("H200", f"model.config={model}", "model.sequence=2048", "model.adapter.rank=16")
    assert made.fits
    assert made.layout.engine == "windtunnel"
    assert any("FlexAttention" in note for note in made.notes)


def test_what_no_engine_runs_is_refused_with_its_reason() -> None:
    for weights in ("fp8", "fp8-experts"):
        with pytest.raises(UserError, match="which have biases"):
            plan("H100", "model.config=gpt-oss-20b", "model.adapter.rank=16", f"model.weights={weights}")
    with pytest.raises(UserError, match=r"layout\.shard: full") as error:
        plan("8xH100", FULL, "stages.sft.precision=fp8", "layout.shard=full")
    assert "layout.shard=optimizer" in (error.value.fix or "")


@pytest.mark.parametrize("model", ["llama-3.2-1b", "llama-3.1-8b", "smollm3-3b"])
@pytest.mark.parametrize("adapter", [True, False])
def test_no_plan_is_faster_than_its_products(model: str, adapter: bool) -> None:
    said = []
    for sequence in (4096, 32_768, 131_072):
        sets = [f"model.config={model}", f"model.sequence={min(sequence, hf_shape(model).max_positions)}"]
        made = plan("8xH200", *sets, "stages.sft.batch_tokens=2097152", *([] if adapter else [FULL]))
        assert made.mfu <= load_hf_constants("H200").matmul_efficiency
        said.append(made.sources["mfu"])
    assert "PaLM" in said[0]


def test_gathering_over_slow_links_takes_no_more_bandwidth_from_computation() -> None:
    rig = parse_rig("8xH200")
    fixed = (FULL, "model.config=llama-3.1-8b", "layout.shard=full", "layout.recompute=none", "stages.sft.micro_batch=4")
    two, four, eight = (make_plan(finetune(*fixed), replace(rig, link_gbs=rig.link_gbs / n)).step_terms for n in (2, 4, 8))
    assert eight["communication"] == pytest.approx(2 * four["communication"]) == pytest.approx(4 * two["communication"])
    assert eight["memory bandwidth"] == pytest.approx(four["memory bandwidth"]) == pytest.approx(two["memory bandwidth"])


@pytest.mark.parametrize("sets", [("model.depth=8",), ("model.depth=8", "stages.pretrain.precision=fp8"), ("model.window=SSL",)])
def test_no_pretraining_is_faster_than_its_products(sets: tuple[str, ...]) -> None:
    long, short = (make_plan(load_recipe("charlm", (*sets, f"model.sequence={n}")), parse_rig("H200")) for n in (131_072, 2048))
    assert long.mfu <= load_hf_constants("H200").matmul_efficiency
    assert "PaLM" in long.sources["mfu"]
    assert "PaLM" in short.sources["mfu"]
    assert "computed" not in short.sources["mfu"]


def test_recursion_repeats_what_is_masked_and_a_grid_masks_nothing() -> None:
    plain = recipe_shape(load_recipe("charlm", ["model.depth=12", "model.sequence=1024"]), 64)
    assert plain.masked_flops_per_token == pytest.approx(masked_flops(plain.blocks, 1024))
    recursive = recipe_shape(stage_recipe(load_recipe("trm"), "validation"), 64)
    r = recursive.recursion
    assert r is not None
    passes = r.supervision * (r.gradient_passes + (r.passes - r.gradient_passes) / 3)
    assert recursive.masked_flops_per_token == pytest.approx(passes * masked_flops(recursive.blocks, recursive.sequence))
    grid = recipe_shape(load_recipe("trm-sudoku"), 11)
    assert grid.masked_flops_per_token == 0.0


def test_a_stage_is_planned_by_its_kinds_planner_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Half(FineTuning):
        """Fine-tuning that never fits, and knows one thing that helps."""

        def draft(self, case: Case) -> Draft:
            seven = case.recipe.seed == 7
            return replace(super().draft(case), model="half a model", reasons=[] if seven else ["the seed is not 7"])

        def changes(self, recipe, rig):  # type: ignore[no-untyped-def]
            return [[Change(("seed=6",), "no help"), Change(("seed=7",), "a better seed")]]

        def elsewhere(self, recipe):  # type: ignore[no-untyped-def]
            return []

    monkeypatch.setitem(sys.modules, "half_planner", SimpleNamespace(PLANNER=Half()))
    monkeypatch.setitem(PLANNERS, "sft", "half_planner")
    made = plan("8xH100")
    assert made.model == "half a model"
    assert made.reasons == ("the seed is not 7",)
    assert [option.change for option in made.alternatives] == ["--set seed=7"]
    assert plan("8xH100", "seed=7").fits
    assert make_plan(load_recipe("rl"), parse_rig("8xH100")).model != "half a model"


def test_a_run_that_is_refused_names_no_other_rigs() -> None:
    made = plan("8xH100", DEEPSEEK, FULL)
    assert any("--set" in a.change and "--rig" in a.change for a in made.alternatives)
    assert "--rig" not in (refuse(made).fix or "")


def test_what_fits_unchanged_comes_before_what_others_train() -> None:
    """Fewer GPUs hold it in four bits, which is of no use to who wants to train it."""
    recipe = load_recipe("thesis")
    assert [a.change for a in make_plan(recipe, parse_rig("cpu")).alternatives] == ["--rig 8xH200", "--rig 8xB200"]
    beside = {a.change: a.why for a in make_plan(recipe, parse_rig("8xH100")).alternatives}
    others = ["--set model.weights=int4", "--set model.weights=fp8 --rig '2x(8xH100)'"]
    assert list(beside)[-2:] == others
    assert ["plans and does not train" in why for why in beside.values()] == [change in others for change in beside]
    assert {"--rig '2x(8xH100)'", "--rig 8xH200"} < set(beside)


def test_a_speed_below_a_token_a_second_is_not_none() -> None:
    made = make_plan(load_recipe("thesis"), parse_rig("cpu"))
    assert 0 < made.tokens_per_second < 1
    speed = next(value for name, value, _ in lines(made) if name == "speed")
    assert float(speed.split()[0]) == pytest.approx(made.tokens_per_second, rel=0.05)


def test_no_job_is_promised_for_an_adapter_in_another_engine() -> None:
    """Jobs for Megatron-Bridge are of full fine-tuning: what launch would refuse is not advised."""
    notes = make_plan(load_recipe("thesis", ["model.weights=fp8"]), parse_rig("2x(8xH100)")).notes
    assert any("for an adapter" in note and "windtunnel launch" not in note for note in notes)
    notes = plan("4x(8xH100)", "model.config=qwen3-30b-a3b", "layout.expert=8", FULL).notes
    assert any("windtunnel launch" in note for note in notes)
