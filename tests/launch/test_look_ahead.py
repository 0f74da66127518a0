"""Before a stage begins: it and those behind it must fit, be paid for, be confirmed, and have what they need here."""

from __future__ import annotations

from pathlib import Path

import pytest
from stages_job import TWO, Silent, StagesJob, refused

from windtunnel.launch import Options, run_stages
from windtunnel.recipe import UserError, load_recipe

pytestmark = pytest.mark.end_to_end


def test_money_and_time_are_for_all_stages(job: StagesJob, tmp_path: Path) -> None:
    job.recipe = load_recipe(tmp_path / "two.yaml", ["budget.hours=5", "budget.dollars=12"])
    assert job.go() == 0
    assert [(r.budget.hours, r.budget.dollars) for r in job.recipes] == [(5.0, 12.0), (4.0, 2.0)]
    assert job.go("second", resume=True) == 0
    assert job.recipes[0].budget.dollars == 2.0


def test_a_stage_that_nothing_is_left_for_does_not_begin(job: StagesJob, tmp_path: Path) -> None:
    job.recipe = load_recipe(tmp_path / "two.yaml", ["budget.hours=5"])
    job.seconds = 5 * 3600
    assert job.go() == 3
    assert job.names == ["first"]
    assert any("budget.hours is for all stages and is spent" in text for text in job.said)


def test_stages_that_cannot_be_paid_are_refused_before_the_first_begins(job: StagesJob, tmp_path: Path) -> None:
    job.recipe = load_recipe(tmp_path / "two.yaml", ["budget.hours=0.1", "stages.first.budget.steps=100000000"])
    error = refused(job)
    assert "stage second, which follows, does not fit" in error.message
    assert "pays for all stages" in str(error.fix)


def test_what_a_later_stage_asks_to_be_confirmed_is_asked_first(job: StagesJob, tmp_path: Path) -> None:
    job.recipe = load_recipe(tmp_path / "two.yaml", ["stages.second.budget.steps=100000"])
    with pytest.raises(UserError, match=r"second: .* epochs over the data"):
        run_stages(job.recipe, Options(root=job.root), lambda: Silent([]), job.reports.append)
    assert not job.started


TOO_LONG = "model.sequence=16777216"
"""Tokens: attention over so many fits no machine."""


def test_stages_that_will_not_run_are_not_asked_about(job: StagesJob, tmp_path: Path) -> None:
    """Alone, the first stage runs whatever the second would need, cost or ask for."""
    for change in (f"stages.second.set.{TOO_LONG}", "stages.second.budget.steps=100000"):
        job.recipe = load_recipe(tmp_path / "two.yaml", [change])
        assert job.go("first") == 0
        assert job.names == ["first"]
    assert run_stages(job.recipe, Options(root=job.root), lambda: Silent([]), job.reports.append, stage="first") == 0
    assert not any("together" in text for text in job.said)


SFT_THEN_RL = (
    "model={kind: huggingface, config: smollm2-135m, sequence: 64}", "stages.first=null", "stages.second=null",
    "stages.sft={batch_tokens: 512, budget: {steps: 2}}",
    "stages.rl={prompts: 2, samples: 2, prompt_tokens: 8, answer_tokens: 8, reward: exact, budget: {steps: 2}, "
    "set: {data.corpus: {kind: prompts, arithmetic: {}}}}",
)  # fmt: skip


def test_judges_of_a_later_stage_are_tried_before_the_first_begins(job: StagesJob, tmp_path: Path) -> None:
    judge = tmp_path / "judge.py"
    path = tmp_path / "judged.yaml"
    path.write_text(TWO)
    job.recipe = load_recipe(path, [*SFT_THEN_RL, f"stages.rl.reward={judge}:score"])
    assert "judge.py does not exist" in refused(job).message
    judge.write_text("def score(prompt, answer, truth):\n    return 1.0\n")
    assert job.go() == 0
    assert job.names == ["sft", "rl"]
    judge.unlink()
    assert job.go(stage="sft") == 0, "the stage after it is not asked for"


def test_vllm_for_a_later_stage_is_asked_for_before_the_first_begins(
    job: StagesJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDTUNNEL_VLLM_PYTHON", str(tmp_path / "none"))
    path = tmp_path / "answered.yaml"
    path.write_text(TWO)
    job.recipe = load_recipe(path, [*SFT_THEN_RL, "stages.rl.engine=vllm"])
    assert "there is no such program" in refused(job).message
    assert job.go(stage="sft") == 0, "the stage after it is not asked for"


def test_the_first_stage_that_does_not_fit_is_told_of(job: StagesJob, tmp_path: Path) -> None:
    job.recipe = load_recipe(tmp_path / "two.yaml", [f"stages.second.set.{TOO_LONG}"])
    error = refused(job)
    assert "stage second, which follows, does not fit" in error.message
    assert str(error.fix).endswith("--stage first")
    job.recipe = load_recipe(tmp_path / "two.yaml", [TOO_LONG])
    for stage in (None, "first"):
        error = refused(job, stage)
        assert "stage first does not fit" in error.message
        assert "--stage" not in str(error.fix)
    job.recipe = load_recipe(tmp_path / "two.yaml", ["budget.hours=0.0001"])
    assert "stage first does not fit rig here: budget.hours ends before the first step" in refused(job).message


def test_a_stage_alone_has_what_the_run_before_it_left_not_what_was_planned(job: StagesJob, tmp_path: Path) -> None:
    """The first was planned to take all of the hours, and took one."""
    budget = ["budget.hours=1.5", "stages.first.budget.steps=40000000"]
    job.recipe = load_recipe(tmp_path / "two.yaml", budget)
    assert job.go("first") == 0
    assert job.go("second") == 0
    assert job.recipes[0].budget.hours == 0.5
