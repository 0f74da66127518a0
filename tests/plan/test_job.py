"""The whole job of a fine-tuning: every step counted by hand, what needs no GPU priced twice, one total."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windtunnel.model import hf_shape
from windtunnel.plan import Job, make_plan, plan_job
from windtunnel.plan.judging import REPLAYED_KERNELS
from windtunnel.recipe import load_recipe, stage_recipe
from windtunnel.rig import load_catalog, parse_rig

BIG = (
    "model.config=deepseek-v3", "model.adapter.rank=16", "model.adapter.targets=attention", "model.weights=fp8",
    "stages.sft.answers=null",
)  # fmt: skip


def job_of(rig: str, *sets: str) -> Job:
    recipe, on = load_recipe("finetune", sets), parse_rig(rig)
    made = plan_job(recipe, on, [("sft", make_plan(recipe, on))])
    assert made is not None
    return made


def test_a_model_of_671_billion_is_downloaded_converted_trained_judged_and_exported() -> None:
    job = job_of("8xH200@$40/h", *BIG)
    steps = {step.name: step for step in job.steps if step.counted}
    assert list(steps) == ["download", "convert", "prepare", "sft", "evaluate", "export"]
    # The hub says 688,586,727,753 bytes of weights.
    assert steps["download"].disk_bytes == pytest.approx(688_586_727_753, rel=1e-3)
    assert steps["download"].hours == pytest.approx(688.4 / 0.5 / 3600, rel=1e-3)
    assert steps["download"].dollars == pytest.approx(40 * 688.4 / 0.5 / 3600, rel=1e-3)
    # Reading 0.69 TB at 2 GB/s and writing 1.34 TB at 1 GB/s takes longer than 688 GB at 16 x 0.23 GB/s.
    assert steps["convert"].hours == pytest.approx((688.4 / 2 + 1342 / 1) / 3600, rel=1e-3)
    assert steps["convert"].disk_bytes == pytest.approx(1.342e12, rel=1e-3)
    assert not any(steps[name].needs_gpu for name in ("download", "convert", "prepare", "export"))
    assert all(steps[name].needs_gpu for name in ("sft", "evaluate"))
    assert job.hours == pytest.approx(sum(step.hours or 0.0 for step in steps.values()))
    assert job.dollars == pytest.approx(40 * job.hours)
    cheap = load_catalog().elsewhere.price.price().middle() or 0.0
    apart = sum(step.hours or 0.0 for step in steps.values() if not step.needs_gpu)
    assert job.shared_dollars == pytest.approx(40 * (job.hours - apart) + cheap * apart)
    assert job.rows()[len(steps)][0] == "total"
    assert any("windtunnel fetch deepseek-ai/DeepSeek-V3 --to FOLDER" in text for text in job.advice)
    assert json.loads(json.dumps(job.to_json()))["total"]["dollars"] == pytest.approx(job.dollars)


@pytest.mark.parametrize(("name", "measured"), [("finetune", "questions"), ("thesis", "theses")])
def test_preparing_takes_as_long_as_was_measured(name: str, measured: str) -> None:
    results = json.loads((Path(__file__).parents[2] / "benchmarks/results/prepare-cpu.json").read_text())
    recipe, rig = load_recipe(name), parse_rig("8xH200")
    plan = make_plan(recipe, rig)
    job = plan_job(recipe, rig, [("sft", plan)])
    assert job is not None
    step = next(step for step in job.steps if step.name == "prepare")
    assert plan.corpus_tokens is not None
    assert step.hours == pytest.approx(plan.corpus_tokens / results[measured]["tokens_per_second"] / 3600, rel=0.05)


def test_more_predictions_take_longer_and_are_not_in_the_total() -> None:
    job = job_of("8xH200", *BIG)
    few, many = (step for step in job.steps if step.name == "predict")
    assert not few.counted
    assert few.hours is not None
    assert many.hours is not None
    assert few.hours < many.hours < 10 * few.hours  # starting and loading are paid once
    longer = job_of("8xH200", *BIG[:-1], "stages.sft.answers.every=null", "stages.sft.answers.tokens=2048")
    assert next(step.hours or 0.0 for step in longer.steps if step.name == "predict") > few.hours


def test_what_the_engine_reads_as_it_is_needs_no_conversion_and_a_small_model_none_at_all() -> None:
    small = job_of("H100")
    assert "convert" not in [step.name for step in small.steps]
    assert small.advice == ()
    assert next(s for s in small.steps if s.name == "download").disk_bytes == hf_shape("smollm2-135m").published_bytes


def test_the_line_of_a_rig_file_is_the_rate(tmp_path: Path) -> None:
    path = tmp_path / "slow.yaml"
    path.write_text("{gpu: H200, gpus_per_node: 8, price: $40/h, download: 100 MB/s, disk: 2 TB}")
    job = job_of(str(path), *BIG)
    assert job.steps[0].hours == pytest.approx(6884 / 3600, rel=1e-3)
    assert "slow.yaml" in job.steps[0].source
    assert any("2 TB are free" in text for text in job.advice)


def test_reinforcement_learning_has_a_job_whose_evaluation_is_judged() -> None:
    recipe, rig = load_recipe("kernels"), parse_rig("8xH100")
    stages = [(stage.name, make_plan(stage_recipe(recipe, stage.name), rig)) for stage in recipe.training]
    made = plan_job(recipe, rig, stages)
    assert made is not None
    assert [step.name for step in made.steps if step.counted] == ["download", "prepare", "sft", "rl", "evaluate", "export"]
    evaluate = next(step for step in made.steps if step.name == "evaluate")
    assert "judging" in evaluate.source
    assert evaluate.hours is not None
    assert evaluate.hours > 400 / REPLAYED_KERNELS.per_second / 3600  # both models' answers
    assert made.hours == pytest.approx(sum(step.hours or 0.0 for step in made.steps if step.counted))


def test_a_stage_that_does_not_fit_says_by_how_much_and_what_would_and_costs_nothing() -> None:
    rig = parse_rig("8xH100@$20/h")
    recipe = load_recipe("thesis")
    plan = make_plan(recipe, rig)
    made = plan_job(recipe, rig, [("sft", plan)])
    assert made is not None
    (sft,) = [step for step in made.steps if step.name == "sft"]
    assert (sft.fits, sft.hours, sft.dollars) == (False, None, None)
    assert f"{plan.peak_gib:.1f} of {plan.limit_gib:.1f} GiB" in sft.does
    assert "what fits: --rig " in sft.source
    assert "of" in sft.source
    others = [step for step in made.steps if step.counted and step.fits]
    assert {step.name for step in others} >= {"download", "prepare", "export"}
    assert not made.fits
    assert made.dollars == pytest.approx(20 * sum(step.hours or 0.0 for step in others))
    assert ("the others", "") in [row[:2] for row in made.rows()]
    assert made.to_json()["total"]["fits"] is False


def test_a_backtest_is_a_row_of_seconds_that_needs_no_gpu() -> None:
    recipe, rig = load_recipe("thesis"), parse_rig("8xH200")
    made = plan_job(recipe, rig, [("sft", make_plan(recipe, rig))])
    assert made is not None
    names = [step.name for step in made.steps]
    assert names[names.index("evaluate") + 1] == "backtest"
    (traded,) = [step for step in made.steps if step.name == "backtest"]
    assert traded.counted
    assert not traded.needs_gpu
    assert "1,000 predictions" in traded.does
    assert 0 < (traded.hours or 0.0) < 60 / 3600
    assert traded.disk_bytes == 0
    assert traded.elsewhere_dollars == pytest.approx(0.0, abs=0.005)
    assert next(row for row in made.rows() if row[0] == "backtest")[2].endswith(" s")
    assert "backtest" not in [step.name for step in job_of("H100").steps]


def test_only_fine_tuning_has_a_job() -> None:
    rig = parse_rig("8xH100")
    trm = load_recipe("trm")
    plans = [(stage.name, make_plan(stage_recipe(trm, stage.name), rig)) for stage in trm.training]
    assert plan_job(trm, rig, plans) is None
