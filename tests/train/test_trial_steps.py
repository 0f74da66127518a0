"""A trial on one rank, in this process."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from recordings import Again

from windtunnel.evaluate import validation_loss
from windtunnel.recipe import UserError, load_recipe
from windtunnel.train import TrialRequest, run_trial

LAYOUT = {
    "ranks": 1, "micro_batch": 4, "accumulation": 2, "precision": "fp32", "compile": False, "device": "cpu", "sequence": 32,
}  # fmt: skip


@pytest.fixture
def request_(tiny: Path) -> TrialRequest:
    return TrialRequest(load_recipe(tiny), LAYOUT, vocab=300, config=None, steps=4, warm_up=2, seconds=60.0)


def test_a_trial_measures_steps_and_phases(request_: TrialRequest, tmp_path: Path) -> None:
    stages: list[str] = []
    measured = run_trial(request_, tmp_path, stages.append)
    assert len(measured["all_step_seconds"]) == 4
    assert min(measured["all_step_seconds"]) <= measured["step_seconds"] <= max(measured["all_step_seconds"])
    assert len(measured["losses"]) == len(measured["gradient_norms"]) == 2 + 4
    # Random tokens: as good as guessing at first, and better once the one batch is being learnt by heart.
    assert measured["losses"][0] == pytest.approx(math.log(300), rel=0.02)
    assert measured["losses"][-1] < measured["losses"][0]
    assert list(measured["phases"]) == ["forward", "backward", "optimizer"]
    assert all(phase["seconds"] > 0 and phase["peak_gib"] > 0 for phase in measured["phases"].values())
    assert measured["parameters"] > 0
    assert stages[0] == "building the model"


def test_reading_the_phases_changes_no_result(request_: TrialRequest, tmp_path: Path) -> None:
    """The marked step does what an unmarked one does."""
    from windtunnel.recipe import Layout
    from windtunnel.train.gpt import build_gpt_engine
    from windtunnel.train.ranks import join_ranks
    from windtunnel.train.trial import EngineSteps, random_feed

    results = []
    for marks in ([], ["here"]):
        with join_ranks("cpu") as ranks:
            layout = Layout(**LAYOUT)
            feed = random_feed(layout, ranks, 300, tmp_path, request_.recipe.seed)
            steps = EngineSteps(build_gpt_engine(request_.recipe, layout, ranks, feed))
            phases: list[str] = []
            results.append([steps.step(phases.append if marks else None).result() for _ in range(3)])
            steps.close()
            assert phases == (["forward", "backward", "forward", "backward", "optimizer"] * 3 if marks else [])
    assert [(r.loss, r.gradient_norm) for r in results[0]] == [(r.loss, r.gradient_norm) for r in results[1]]


def test_recorded_passes_give_what_passes_give(request_: TrialRequest, tmp_path: Path) -> None:
    """Over micro-batches and updates, with a recording that knows no other tensors than those it was made with."""
    from windtunnel.model import Replay
    from windtunnel.recipe import Layout
    from windtunnel.train.gpt import PlainLoss, build_gpt_engine
    from windtunnel.train.ranks import join_ranks
    from windtunnel.train.trial import EngineSteps, random_feed

    results, recorded = [], 0

    def record(work: Callable[[], None]) -> Again:
        nonlocal recorded
        recorded += 1
        return Again(work)

    for run in (Replay(), Replay(record)):
        with join_ranks("cpu") as ranks:
            layout = Layout(**LAYOUT)
            feed = random_feed(layout, ranks, 300, tmp_path, request_.recipe.seed)
            engine = build_gpt_engine(request_.recipe, layout, ranks, feed)
            engine._loss = PlainLoss(run)
            steps = EngineSteps(engine)
            pending = [steps.step() for _ in range(4)]
            results.append([(one.result().loss, one.result().gradient_norm) for one in pending])
            steps.close()
    assert recorded == 1
    assert results[0] == results[1]
    assert len(set(results[0])) == 4


def test_slow_steps_end_early_but_three_are_timed(request_: TrialRequest, tmp_path: Path) -> None:
    measured = run_trial(replace(request_, steps=50, seconds=0.0), tmp_path, lambda _: None)
    assert len(measured["all_step_seconds"]) == 3


CONFIG = {
    "model_type": "qwen2", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.mark.parametrize("adapter", ["null", "{rank: 4}"])
def test_a_trial_of_a_hugging_face_model(adapter: str, tmp_path: Path) -> None:
    recipe = load_recipe("sft", [f"model.adapter={adapter}", "stages.sft.learning_rate=1e-3", "model.sequence=32"])
    layout = {**LAYOUT, "shard": "full", "recompute": "block"}
    measured = run_trial(TrialRequest(recipe, layout, None, CONFIG, steps=4, warm_up=1, seconds=60.0), tmp_path, lambda _: None)
    assert measured["losses"][0] == pytest.approx(math.log(256), rel=0.02)
    assert measured["losses"][-1] < measured["losses"][0]
    assert list(measured["phases"]) == ["forward", "backward", "optimizer"]
    assert (measured["trained"] < measured["parameters"]) == (adapter != "null")


def test_fp8_products_of_a_hugging_face_model_are_refused(tmp_path: Path) -> None:
    request = TrialRequest(load_recipe("sft"), {**LAYOUT, "precision": "fp8", "shard": "full", "recompute": "none"}, None,
                           CONFIG, steps=1, warm_up=1, seconds=1.0)  # fmt: skip
    with pytest.raises(UserError) as error:
        run_trial(request, tmp_path, lambda _: None)
    assert "stages.sft.precision=bf16" in (error.value.fix or "")


def test_a_trial_with_recorded_passes_records_them_validates_and_reads_the_phases_without(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from windtunnel.train import gpt

    recorded, scored = [], []

    def record(work: Callable[[], None]) -> Again:
        recorded.append(work)
        return Again(work)

    def score(*given: object) -> object:
        scored.append(given)
        return validation_loss(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(gpt, "CudaRecorder", lambda: record)
    monkeypatch.setattr(gpt, "validation_loss", score)
    keys = ("trm.preset=honest", "trm.supervision=2", "trm.ema=0.9", "model.mlp=swiglu", "model.value_embeddings=false")
    request = TrialRequest(load_recipe(tiny, keys), LAYOUT, vocab=300, config=None, steps=3, warm_up=3, seconds=60.0)
    launched = run_trial(request, tmp_path, lambda _: None)
    assert (len(recorded), len(scored)) == (0, 0)
    measured = run_trial(replace(request, layout=LAYOUT | {"recorded": True}), tmp_path, lambda _: None)
    assert (len(recorded), len(scored)) == (1, 1)
    assert measured["losses"] == launched["losses"]
    assert measured["gradient_norms"] == launched["gradient_norms"]
    assert set(measured["phases"]) == {"forward", "backward", "optimizer"}
