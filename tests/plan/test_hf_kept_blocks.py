"""Plans that compute blocks again but for the last ones, which the peak at the end of the backward pass leaves room for."""

import pytest

from windtunnel.plan import Plan, make_plan
from windtunnel.recipe import Layout, load_recipe
from windtunnel.rig import parse_rig

WHOLE = (
    "model.config=qwen2.5-7b", "model.adapter=null", "model.sequence=4096", "stages.sft.batch_tokens=16384",
    "stages.sft.micro_batch=4", "layout.recompute=block", "stages.sft.master=false", "stages.sft.graphs=false",
)  # fmt: skip


def plan(rig: str, *sets: str) -> Plan:
    return make_plan(load_recipe("sft", (*WHOLE, *sets)), parse_rig(rig))


def test_as_many_are_kept_as_cost_the_peak_nothing() -> None:
    kept = plan("H200")
    assert 1 <= kept.layout.kept_blocks < 28
    assert f"blocks recomputed but the last {kept.layout.kept_blocks}" in kept.layout.describe()
    # Once more would not fit beneath it, and eager blocks are never kept.
    again = plan("H200", "stages.sft.compile=false")
    assert again.layout.kept_blocks == 0
    moments = {moment.name: moment.gib for moment in kept.timeline}
    assert max(moments, key=lambda name: moments[name]) == "backward, first block"
    assert moments["backward, first block made again"] <= moments["backward, first block"]


@pytest.mark.parametrize(
    "sets",
    [
        ("stages.sft.micro_batch=2",),  # the first micro-batch's gradients are there when the second begins
        ("model.adapter={rank: 16}", "stages.sft.master=true"),  # its peak is at the beginning of the backward pass
        ("layout.recompute=none",),
        ("layout.kept_blocks=0",),
    ],
)
def test_where_there_is_no_room_none_is_kept(sets: tuple[str, ...]) -> None:
    assert plan("H200", *sets).layout.kept_blocks == 0


def test_ranks_keep_none() -> None:
    assert plan("2xH200", "stages.sft.batch_tokens=32768").layout.kept_blocks == 0


def test_runs_of_before_have_none() -> None:
    told = plan("H200").layout.as_dict()
    del told["kept_blocks"]
    assert Layout.of_plan(told).kept_blocks == 0
