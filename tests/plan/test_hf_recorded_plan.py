"""Plans of fine-tuning whose passes are recorded as CUDA graphs: time that the host no longer takes, memory, refusals."""

import json
from pathlib import Path

import pytest

from windtunnel.plan import Plan, make_plan
from windtunnel.recipe import UserError, load_recipe
from windtunnel.rig import parse_rig

SMALL = (
    "model.config=smollm2-135m", "model.adapter=null", "model.sequence=2048", "stages.sft.batch_tokens=32768",
    "stages.sft.micro_batch=4", "layout.recompute=none",
)  # fmt: skip
GRAPHS = "stages.sft.graphs=true"


def plan(rig: str, *sets: str) -> Plan:
    return make_plan(load_recipe("sft", (*SMALL, *sets)), parse_rig(rig))


def test_recorded_passes_take_no_launches_and_hold_their_memory_for_good() -> None:
    recorded, launched = plan("H200", GRAPHS), plan("H200", "stages.sft.graphs=false")
    assert recorded.layout.recorded
    assert not launched.layout.recorded
    assert "passes recorded" in recorded.layout.describe()
    assert launched.bound == "kernel launches"
    assert "kernel launches" not in recorded.step_terms
    assert recorded.step_seconds < 0.8 * launched.step_seconds
    held = {moment.name: moment.components["recording"] for moment in recorded.timeline}
    # Passes of what is not recorded yet use the same memory: there is nothing beside but a workspace.
    passes = max(moment.gib for moment in launched.timeline) - min(moment.gib for moment in launched.timeline)
    between = {name: gib for name, gib in held.items() if not name.startswith(("forward", "loss", "backward"))}
    assert between
    assert all(0.7 * passes < gib < 1.1 * passes for gib in between.values())
    assert all(gib < 1 for name, gib in held.items() if name not in between)
    assert recorded.peak_gib == pytest.approx(launched.peak_gib, abs=1)
    assert all(f"components.{name}" in recorded.sources for name in recorded.components)
    assert recorded.error["memory"] >= 0.2
    assert recorded.error["time"] >= 0.3


@pytest.mark.parametrize(
    ("rig", "sets", "recorded"),
    [
        ("H100", (), True),
        ("A10G", (), True),
        ("T4", (), False),  # has no attention that can be recorded
        ("2xH100", (), True),  # each GPU holds all weights
        ("2xH100", ("layout.shard=full",), False),  # weights are gathered from the other GPU
        ("2xH100", ("stages.sft.graphs=false",), False),
        ("2xH100", ("model.config=qwen2.5-0.5b",), False),
        ("H100", ("model.config=qwen2.5-0.5b",), False),  # kernels long enough for the host
        ("H100", ("model.config=qwen2.5-0.5b", GRAPHS), True),
        ("H100", ("stages.sft.compile=false",), False),
        ("H100", ("stages.sft.graphs=false",), False),
        ("H100", ("model.adapter={rank: 8}",), True),
    ],
)
def test_small_layers_are_recorded_unasked(rig: str, sets: tuple[str, ...], recorded: bool) -> None:
    assert plan(rig, *sets).layout.recorded == recorded


def test_a_model_with_dropout_is_not_recorded_unasked(tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "vocab_size": 49152, "max_position_embeddings": 8192,
    }  # fmt: skip
    for dropout in (0.0, 0.1):
        (tmp_path / "config.json").write_text(json.dumps(config | {"attention_dropout": dropout}))
        assert plan("H100", f"model.config={tmp_path}/config.json").layout.recorded == (dropout == 0)


def test_several_ranks_hold_all_weights_each() -> None:
    made = plan("2xH100", GRAPHS)
    assert made.fits
    assert (made.layout.ranks, made.layout.shard, made.layout.recorded) == (2, "none", True)


@pytest.mark.parametrize(
    ("rig", "sets", "says", "fix"),
    [
        ("2xH100", ("layout.shard=full",), "layout.shard: full", "layout.shard=none"),
        ("2xH100", ("layout.tensor=2", "model.config=qwen3-8b"), "Megatron-Bridge", "graphs=false"),
        ("H100", ("stages.sft.precision=fp8",), "Megatron-Bridge", "graphs=false"),
        ("H100", ("model.config=olmoe-1b-7b", "model.adapter={rank: 4}", "model.weights=fp8-experts"), "experts", "graphs=false"),
    ],
)
def test_what_is_not_recorded_is_refused_by_name(rig: str, sets: tuple[str, ...], says: str, fix: str) -> None:
    with pytest.raises(UserError) as error:
        plan(rig, GRAPHS, *sets)
    assert error.value.message.startswith("stages.sft.graphs: true")
    assert says in error.value.message
    assert fix in (error.value.fix or "")


def test_launching_is_named_where_a_recording_has_no_room() -> None:
    sets = (
        "model.config=smollm2-1.7b", "stages.sft.batch_tokens=131072", "stages.sft.micro_batch=8",
        "stages.sft.answers={every: 100 steps, prompts: 64, tokens: 512}",
    )  # fmt: skip
    assert plan("H100", *sets).fits
    made = plan("H100", *sets, GRAPHS)
    assert not made.fits
    assert made.alternatives[0].change == "--set stages.sft.graphs=false"
