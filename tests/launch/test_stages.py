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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from waiting import HANG
from zygote import windtunnel

from windtunnel.launch import Options, StageReport, run_stages, stages
from windtunnel.recipe import Recipe, UserError, load_recipe, stage_recipe
from windtunnel.run import Metrics, MetricsReader, RunFolder, list_runs

pytestmark = pytest.mark.end_to_end

AGAIN = "windtunnel train two.yaml"
TWO = """\
name: two
model: {depth: 1, aspect: 32, head_dim: 32, sequence: 32}
data:
  corpus: {kind: arithmetic, documents: 2000}
  validation: 0.05
stages:
  first:
    kind: pretrain
    batch_tokens: 512
    validate_every: 20 steps
    validation_tokens: 2000
    optimizer: {matrix_lr: 0.01}
    budget: {steps: 40}
    gates: {}
  second:
    kind: pretrain
    init_from: random
    batch_tokens: 512
    validate_every: 20 steps
    validation_tokens: 2000
    optimizer: {matrix_lr: 0.01}
    budget: {steps: 20}
    set:
      model.depth: 2
  evaluate: {samples: 0}
"""


class Silent:
    """A view that only remembers what was said."""

    def __init__(self, said: list[str]) -> None:
        self.said = said

    def update(self, snapshot: Any) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        self.said.append(text)

    def close(self) -> None:
        """Nothing."""


@dataclass
class StagesJob:
    """Runs the stages with a trainer that only writes down what was asked for and a loss that falls, or not."""

    recipe: Recipe
    root: Path
    falls: bool = True
    codes: list[int] = field(default_factory=list)
    seconds: float = 3600.0
    started: list[tuple[str | None, Path | None]] = field(default_factory=list)
    recipes: list[Recipe] = field(default_factory=list)
    reports: list[StageReport] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def train(self, recipe: Recipe, options: Options, view: Any, **_: Any) -> tuple[int, Path]:
        self.started.append((recipe.stage, options.run))
        self.recipes.append(recipe)
        code = self.codes.pop(0) if self.codes else 0
        run = RunFolder.open(options.run, recipe, write=True) if options.run else None
        if run is None:
            run = RunFolder.create(self.root, recipe, rig={"gpu": None}, plan={"layout": {"batch_tokens": 512}})
            if options.before is not None:
                run.update(before=dict(options.before))
        with run, Metrics(run.metrics_path) as metrics:
            for step in range(1, 41):
                metrics.log(step, {"loss": 3.0 - (step if self.falls else -step) / 100})
            run.spent_path.write_text(json.dumps({"seconds": self.seconds, "dollars": 10.0}))
            run.update(exit_code=code)
            run.finish("done" if code == 0 else "stopped", "test")
        return code, run.path

    def go(self, stage: str | None = None, **options: Any) -> int:
        self.started.clear()
        self.recipes.clear()
        return run_stages(
            self.recipe,
            Options(root=self.root, yes=True, price=1.0, **options),
            lambda: Silent(self.said),
            self.reports.append,
            stage=stage,
            again=AGAIN,
        )

    @property
    def names(self) -> list[str | None]:
        return [name for name, _ in self.started]


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    path = tmp_path / "two.yaml"
    path.write_text(TWO)
    return load_recipe(path)


@pytest.fixture
def job(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StagesJob:
    made = StagesJob(recipe, tmp_path / "runs")
    monkeypatch.setattr(stages, "train_run", made.train)
    return made


def refused(job: StagesJob, stage: str | None = None, **options: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        job.go(stage, **options)
    assert caught.value.exit_code == 2
    assert not job.started
    return caught.value


def only(job: StagesJob, stage: str) -> Path:
    (path,) = [run.path for run in list_runs(job.root) if run.stage == stage]
    return path


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
