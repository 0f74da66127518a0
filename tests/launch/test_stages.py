"""Recipes with stages: what is started after what, what is refused, and what a stopped job goes on with."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stages_job import AGAIN, TWO, StagesJob, only, refused
from waiting import HANG
from zygote import windtunnel

from windtunnel.recipe import Recipe, UserError, load_recipe, stage_recipe
from windtunnel.run import MetricsReader, RunFolder, list_runs

pytestmark = pytest.mark.end_to_end


def test_stages_follow_one_another_when_gates_hold(job: StagesJob) -> None:
    assert job.go() == 0
    assert job.started == [("first", None), ("second", None)]
    assert [(r.budget.steps, r.gpt.depth) for r in job.recipes] == [(40, 1), (20, 2)]
    first, second = only(job, "first"), only(job, "second")
    assert first.name.startswith("two-first-")
    gates = RunFolder.open(first).manifest["gates"]
    assert [(gate["name"], gate["held"]) for gate in gates] == [("decreasing", True)]
    assert RunFolder.open(second).manifest["before"] == {"run": first.name, "hours": 1.0, "dollars": 10.0}
    assert {run.stage: run.gates for run in list_runs(job.root)} == {"first": {"decreasing": True}, "second": None}


def test_a_gate_that_does_not_hold_stops_spending(job: StagesJob) -> None:
    job.falls = False
    assert job.go() == 1
    assert job.names == ["first"]
    (report,) = job.reports
    assert (report.held, report.next_stage) == (False, "second")
    assert "too high" in (report.gates[0].advice or "")
    assert list_runs(job.root)[0].gates == {"decreasing": False}


def test_a_run_that_stops_ends_the_job_and_resume_goes_on_in_its_stage(job: StagesJob) -> None:
    job.codes = [3]
    assert job.go() == 3
    assert job.names == ["first"]
    stopped = only(job, "first")
    assert job.go(resume=True) == 0
    assert job.started == [("first", stopped), ("second", None)]


def test_resume_after_a_stage_has_ended_begins_with_the_next(job: StagesJob) -> None:
    assert job.go("first") == 0
    assert job.names == ["first"]
    assert job.go(resume=True) == 0
    assert job.started == [("second", None)]
    second = only(job, "second")
    assert job.go(resume=True) == 0  # the trainer says that nothing is left to do
    assert job.started == [("second", second)]


def test_resume_of_a_job_whose_evaluation_failed_trains_nothing_more(job: StagesJob, tmp_path: Path) -> None:
    def recipe(*sets: str) -> Recipe:
        return load_recipe(tmp_path / "two.yaml", ["stages.evaluate.gates={exact_match: 0.5}", "budget.dollars=50", *sets])

    job.recipe = recipe()
    assert job.go() == 0
    second = only(job, "second")
    assert job.go(resume=True) == 0
    assert job.started == []  # what is left to do is the evaluation, which comes next
    assert job.go("second", resume=True) == 0
    assert job.started == [("second", second)]  # asked for by name
    for longer in ("stages.second.budget.steps=30", "budget.dollars=60"):
        job.recipe = recipe(longer)
        assert job.go(resume=True) == 0
        assert job.started == [("second", second)], longer
    job.recipe = recipe()
    (second / "evaluation.json").write_text("{}")
    assert job.go(resume=True) == 0
    assert job.started == [("second", second)]  # it is asked whether anything is left


def test_resume_of_a_run_goes_on_from_its_stage(job: StagesJob) -> None:
    assert job.go("first") == 0
    assert job.go(run=only(job, "first"), resume=True) == 0
    assert job.names == ["second"]
    assert "stages of two: first, second" in str(refused(job, "first", run=only(job, "second")).fix)


def test_resume_judges_with_the_gates_of_the_recipe_as_it_is_now(job: StagesJob) -> None:
    job.falls = False
    assert job.go() == 1
    assert job.go(resume=True) == 1
    assert job.names == []
    easy = job.recipe.training[0].model_copy(
        update={"gates": job.recipe.training[0].gates.model_copy(update={"decreasing": False})}
    )
    job.recipe = job.recipe.model_copy(update={"stages": {**job.recipe.stages, "first": easy}})
    assert job.go(resume=True) == 0
    assert job.names == ["second"]


def test_a_later_stage_alone_needs_the_gates_of_the_one_before(job: StagesJob) -> None:
    error = refused(job, "second")
    assert "no run of first" in error.message
    assert error.fix == f"{AGAIN} --stage first"
    job.falls = False
    assert job.go("first") == 1
    error = refused(job, "second")
    assert "decreasing was" in error.message
    job.falls = True
    job.codes = [3]
    assert job.go("first") == 3
    assert "not come to its end" in refused(job, "second").message
    assert job.go("first") == 0
    assert job.go("second") == 0
    assert job.names == ["second"]


@pytest.mark.parametrize(
    "change", ["model.sequence=64", "stages.first.budget.steps=41", "stages.pretrain.optimizer.matrix_lr=0.02", "seed=1"]
)
def test_a_stage_of_another_recipe_does_not_count(job: StagesJob, tmp_path: Path, change: str) -> None:
    assert job.go("first") == 0
    job.recipe = load_recipe(tmp_path / "two.yaml", [change])
    error = refused(job, "second")
    assert "is of another recipe" in error.message
    assert change.split(".")[-1].split("=")[0] in error.message
    if "budget" not in change:
        with pytest.raises(UserError, match=r"no run of the stages .* is of another: .* there and .* here"):
            job.go(resume=True)


def test_a_run_of_another_recipe_opens_no_stage_by_its_gates(job: StagesJob, tmp_path: Path) -> None:
    """Named with --run: what another model showed says nothing about this one."""
    assert job.go("first") == 0
    job.recipe = load_recipe(tmp_path / "two.yaml", ["model.sequence=64"])
    assert "model.sequence is 32 there and 64 here" in refused(job, run=only(job, "first"), resume=True).message


def test_a_stage_that_is_longer_now_is_trained_on_before_its_gates_are_judged(job: StagesJob, tmp_path: Path) -> None:
    assert job.go() == 0
    first, second = only(job, "first"), only(job, "second")
    job.recipe = load_recipe(tmp_path / "two.yaml", ["stages.first.budget.steps=60"])
    assert job.go(run=first, resume=True) == 0
    assert job.started == [("first", first), ("second", None)]
    assert job.go(run=first, resume=True) == 0
    assert job.names == ["second"]
    job.recipe = load_recipe(tmp_path / "two.yaml", ["stages.first.budget.steps=60", "stages.second.budget.steps=30"])
    assert job.go(resume=True) == 0
    assert job.names == ["second"]
    assert job.started[0][1] not in (None, second)


def test_a_change_of_the_later_stage_alone_counts(job: StagesJob, tmp_path: Path) -> None:
    assert job.go("first") == 0
    job.recipe = load_recipe(tmp_path / "two.yaml", ["stages.second.set.model.depth=3"])
    assert job.go("second") == 0
    assert job.recipes[0].gpt.depth == 3


def test_an_unknown_stage_is_refused(job: StagesJob) -> None:
    assert "did you mean --stage second?" in str(refused(job, "secnd"))


def test_a_stage_without_gates_is_told_of_before_the_next_begins(job: StagesJob, tmp_path: Path) -> None:
    job.recipe = load_recipe(tmp_path / "two.yaml", ["stages.first.gates=null"])
    assert job.go() == 0
    (report,) = job.reports
    assert (report.stage, report.gates, report.next_stage) == ("first", None, "second")
    assert report.to_json()["gates"] is None
    assert {run.stage: run.gates for run in list_runs(job.root)} == {"first": {}, "second": None}


def test_a_job_in_its_second_stage_is_judged_again_by_the_gates_in_force(job: StagesJob, tmp_path: Path) -> None:
    job.recipe = load_recipe(tmp_path / "two.yaml", ["stages.first.gates.decreasing=false"])
    job.falls, job.codes = False, [0, 3]
    assert job.go() == 3
    assert job.names == ["first", "second"]
    first, second = only(job, "first"), only(job, "second")
    relaxed, job.recipe = job.recipe, load_recipe(tmp_path / "two.yaml")
    job.reports.clear()
    for options in ({}, {"run": second}, {"stage": "second"}):
        assert job.go(resume=True, **options) == 1
        assert job.names == []
    report = job.reports[0]
    assert (report.stage, report.held, report.next_stage, report.goes_on) == ("first", False, "second", True)
    assert "up" in (report.gates or ())[0].measured
    assert [gate["held"] for gate in RunFolder.open(first).manifest["gates"]] == [False]
    job.recipe = relaxed
    assert job.go(resume=True) == 0
    assert job.started == [("second", second)]
    assert RunFolder.open(first).manifest["gates"] == []


def test_what_cannot_be_judged_again_is_said(job: StagesJob) -> None:
    job.codes = [0, 3]
    assert job.go() == 3
    shutil.rmtree(only(job, "first"))
    assert job.go(resume=True) == 0
    assert job.names == ["second"]
    assert any("is gone" in text and "stage first" in text for text in job.said)


def test_presets_belong_to_what_a_training_is(tmp_path: Path) -> None:
    from windtunnel.run import first_difference

    def difference(*sets: str) -> Any:
        other = stage_recipe(load_recipe("trm", sets), "validation")
        return first_difference(stage_recipe(load_recipe("trm"), "validation"), other)

    assert difference() is None
    assert difference("trm.weight_base=3") == ("trm.weight_base", 5.0, 3.0)
    assert difference("trm.ema=0.99") == ("trm.ema", 0.0, 0.99)
    assert difference("trm.supervision=2")[0] in ("trm.supervision", "trm.inference_supervision")
    assert difference("trm.inference_supervision=8") is None
    assert difference("stages.quality.set.trm.preset=extreme") is None


@pytest.mark.timeout(300)
def test_two_stages_train_for_real_in_processes_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text(TWO)
    command = ["train", "two.yaml", "--yes", "--root", "runs", "--json"]
    done = windtunnel(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    (verdict,) = [line for line in lines if "gates" in line]
    assert (verdict["stage"], verdict["held"], verdict["next"]) == ("first", True, "second")
    assert {run.stage: (run.status, run.step) for run in list_runs(tmp_path / "runs")} == {
        "first": ("done", 40),
        "second": ("done", 20),
    }
    again = windtunnel(*command, "--resume", cwd=tmp_path)
    assert again.returncode == 2
    assert "--set stages.second.budget.steps=40" in json.loads(again.stderr)["fix"]
    assert {run.status for run in list_runs(tmp_path / "runs")} == {"done"}  # nothing was trained, nothing was killed
    for run in list_runs(tmp_path / "runs"):
        with MetricsReader(run.path / "metrics.sqlite") as metrics:
            assert len(metrics.series("loss")) == run.step


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_job_that_is_stopped_in_its_first_stage_goes_on_there(tmp_path: Path, number: int) -> None:
    """Of the command that was started: training under it saves and ends, and --resume does the rest, losing no step."""
    (tmp_path / "two.yaml").write_text(TWO)
    command = [sys.executable, "-m", "windtunnel", "train", "two.yaml", "--yes", "--root", "runs"]
    steps = ["--set", "stages.first.budget.steps=400"]
    process = subprocess.Popen([*command, *steps], cwd=tmp_path, stdout=subprocess.DEVNULL)
    assert _reached(tmp_path / "runs", 20)
    process.send_signal(number)
    code = process.wait(timeout=HANG)
    (stopped,) = (tmp_path / "runs").iterdir()
    assert _waited(lambda: RunFolder.open(stopped).manifest["status"] == "stopped")
    assert code == (3 if number == signal.SIGTERM else -number)
    # The recipe with all its stages is in the run.
    again = [*command[:4], "--resume", "--yes", "--root", "runs"]
    done = subprocess.run(again, cwd=tmp_path, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr
    found = {run.stage: (run.path, run.status, run.step) for run in list_runs(tmp_path / "runs")}
    assert found["first"] == (stopped, "done", 400)
    assert found["second"][1:] == ("done", 20)
    with MetricsReader(stopped / "metrics.sqlite") as metrics:
        assert [point.step for point in metrics.series("loss")] == list(range(1, 401))


def _reached(root: Path, step: int) -> bool:
    return _waited(lambda: any((run.step or 0) >= step for run in list_runs(root)))


def _waited(condition: Callable[[], bool], seconds: float = 150.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(UserError):  # being written
            if condition():
                return True
        time.sleep(0.1)
    return False
