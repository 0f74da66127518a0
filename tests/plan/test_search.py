"""The layout search leaves out what cannot be chosen, and chooses what a search over everything would."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.model import known_models
from windtunnel.plan import climb
from windtunnel.plan.constants import load_hf_constants
from windtunnel.plan.hf_layouts import HFTraining
from windtunnel.plan.hf_work import fine_tuning, totals
from windtunnel.plan.memory import Memory
from windtunnel.plan.search import Candidate, search
from windtunnel.plan.sharing import Round, _order, _splits, grpo_workload, plan_round, search_round
from windtunnel.recipe import Layout, Recipe, UserError, load_recipe
from windtunnel.rig import Rig, parse_rig

LORA = "model.adapter.rank=16"
GPUS = ("A10G", "A100-80", "H100", "H200", "RTX 4090")


def recipe(kind: str, model: str, *sets: str) -> Recipe:
    return load_recipe(kind, [f"model.config={model}", "model.sequence=4096", *sets])


def everything(work: HFTraining, rig: Rig, ranks: int) -> Iterator[Candidate]:
    limit, host = work.limit_gib(rig), rig.ram_gib * work.c.cpu_usable_share
    for layout in work.layouts(rig, ranks):
        candidate = Candidate(layout, work.memory(layout), None, limit, work.host_gib(layout, rig), host)
        time = work.time(layout, rig) if candidate.fits else None
        yield Candidate(layout, candidate.memory, time, limit, candidate.host_gib, host)


@settings(max_examples=40, deadline=None)
@given(
    model=st.sampled_from(known_models()),
    gpu=st.sampled_from(GPUS),
    nodes=st.sampled_from([1, 1, 2, 4, 12]),
    sets=st.lists(
        st.sampled_from([LORA, "stages.sft.states=int8", "layout.recompute=block", "stages.sft.micro_batch=1"]), max_size=2
    ),
)
def test_what_is_left_out_is_never_chosen(model: str, gpu: str, nodes: int, sets: list[str]) -> None:
    rig = parse_rig(f"{nodes}x(8x{gpu})@$1")
    try:
        work = HFTraining(totals(fine_tuning(recipe("sft", model, *set(sets)))), load_hf_constants(gpu))
        weighed = list(everything(work, rig, rig.gpus))
    except UserError:
        return
    found = search(work, rig, rig.gpus)
    assert (found is None) == (not weighed)
    if found is None:
        return
    fitting = sorted((c for c in weighed if c.fits), key=lambda c: c.token_seconds)
    assert [c.layout for c in found.ranked] == [c.layout for c in fitting[: len(found.ranked)]]
    assert len(found.ranked) == min(8, len(fitting))
    if not fitting:
        assert not found.best.fits
        assert found.best.peak_gib == min(c.peak_gib for c in weighed)
    for candidate in weighed:
        kind = Layout.of_plan(vars(candidate.layout))
        assert work.least_gib(kind) <= candidate.peak_gib * (1 + 1e-12), candidate.layout


@settings(max_examples=12, deadline=None)
@given(
    model=st.sampled_from(["smollm2-135m", "qwen2.5-7b", "qwen2.5-32b", "qwen3-30b-a3b", "gemma-2-9b", "deepseek-v3"]),
    rig=st.sampled_from(["2xH100", "8xH100", "8xH200", "2x(8xH100)", "3x(4xGH200)", "8x(8xH200)"]),
    sets=st.lists(
        st.sampled_from([LORA, "stages.rl.overlap=1", "stages.rl.samples=16", "stages.rl.answer_tokens=1024"]), max_size=3
    ),
)
def test_rounds_share_gpus_as_if_every_way_had_been_weighed(model: str, rig: str, sets: list[str]) -> None:
    made, machine = recipe("rl", model, "stages.rl.answer_tokens=3072", *set(sets)), parse_rig(rig)
    assert made.rl is not None
    assert machine.gpu is not None
    c = load_hf_constants(machine.gpu.name)
    training = HFTraining(totals(grpo_workload(made, c)), c)

    def all_ways() -> Iterator[Round]:
        for learners, engines in _splits(made.rl, machine):  # type: ignore[arg-type]
            try:
                yield plan_round(training, made.rl, machine, learners, engines)  # type: ignore[arg-type]
            except UserError:
                continue

    ways = list(all_ways())
    if not ways:
        with pytest.raises(UserError):
            search_round(made, machine, c)
        return
    best = min(ways, key=_order)
    found, _ = search_round(made, machine, c)
    assert _order(found) == _order(best)
    assert (found.learners, found.learner.layout, found.engine) == (best.learners, best.learner.layout, best.engine)


@pytest.mark.parametrize(
    ("kind", "model", "rig"),
    [
        ("rl", "deepseek-v3", "H100"),
        ("rl", "deepseek-v3", "32x(8xH100)"),
        ("sft", "deepseek-v3", "H100"),
        ("rl", "mixtral-8x22b", "32x(8xH100)"),
    ],
)
def test_no_plan_weighs_more_layouts_than_two_seconds_hold(
    monkeypatch: pytest.MonkeyPatch, kind: str, model: str, rig: str
) -> None:
    """Of layouts that differ by more than micro-batch and recomputation most are left out by one look at each."""
    weighed = 0
    real = HFTraining.memory

    def counted(self: HFTraining, layout: Layout) -> Memory:
        nonlocal weighed
        weighed += 1
        return real(self, layout)

    monkeypatch.setattr(HFTraining, "memory", counted)
    climb(load_recipe(kind, [f"model.config={model}"]), [parse_rig(rig)])
    assert weighed < 12_000
