"""Plans of fine-tuning whose passes are recorded as CUDA graphs: time that the host no longer takes, memory, refusals."""

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


@pytest.fixture(autouse=True)
def no_user_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("WINDTUNNEL_RIGS", "WINDTUNNEL_PRICE", "WINDTUNNEL_CALIBRATION"):
        monkeypatch.delenv(name, raising=False)


def plan(rig: str, *sets: str) -> Plan:
    return make_plan(load_recipe("sft", (*SMALL, *sets)), parse_rig(rig))


def test_recorded_passes_take_no_launches_and_hold_their_memory_for_good() -> None:
    recorded, launched = plan("H200", GRAPHS), plan("H200")
    assert recorded.layout.recorded
    assert not launched.layout.recorded
    assert "passes recorded" in recorded.layout.describe()
    assert launched.bound == "kernel launches"
    assert "kernel launches" not in recorded.step_terms
    assert recorded.step_seconds < 0.8 * launched.step_seconds
    held = {moment.name: moment.components["recording"] for moment in recorded.timeline}
    assert len(set(held.values())) == 1
    passes = max(moment.gib for moment in launched.timeline) - min(moment.gib for moment in launched.timeline)
    assert 0.7 * passes < recorded.components["recording"] < 1.1 * passes
    assert recorded.peak_gib == pytest.approx(launched.peak_gib + recorded.components["recording"], rel=0.1)
    assert all(f"components.{name}" in recorded.sources for name in recorded.components)
    assert recorded.error["memory"] >= 0.2
    assert recorded.error["time"] >= 0.3
    assert any("not measured" in note for note in recorded.notes)


@pytest.mark.parametrize("graphs", ["auto", "false"])
def test_nothing_is_recorded_unasked(graphs: str) -> None:
    assert plan("H100", f"stages.sft.graphs={graphs}").to_json() == plan("H100").to_json()


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
    sets = ("model.config=smollm2-1.7b", "stages.sft.batch_tokens=131072", "stages.sft.micro_batch=8")
    assert plan("H100", *sets).fits
    made = plan("H100", *sets, GRAPHS)
    assert not made.fits
    assert made.alternatives[0].change == "--set stages.sft.graphs=false"
