"""Stages on the command line: both in the plan, gates that fit 100 columns, refusals before anything heavy is loaded."""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from waiting import HANG
from zygote import windtunnel

from windtunnel.cli.stages import show_gates
from windtunnel.launch import StageReport
from windtunnel.recipe import Gates, load_recipe, stage_recipe
from windtunnel.run import Point
from windtunnel.train import judge_gates


def test_plan_prints_both_stages_what_they_cost_together_and_which_value_wins() -> None:
    done = windtunnel("plan", "trm", "--on", "8xH100", "--set", "trm.preset=extreme")
    assert done.returncode == 0, done.stderr
    for text in ("stage validation (1 of 2)", "stage quality (2 of 2)", "all stages", "total"):
        assert text in done.stdout
    assert done.stdout.count("--set trm.preset=extreme wins over the stage's own honest") == 1


def test_plan_json_has_the_stages_the_total_and_the_notes() -> None:
    done = windtunnel("plan", "trm", "--on", "8xH100", "--set", "trm.weight_base=3", "--json")
    (entry,) = json.loads(done.stdout)
    assert [stage["stage"] for stage in entry["stages"]] == ["validation", "quality"]
    assert entry["total"]["dollars"] == pytest.approx(sum(stage["dollars"] for stage in entry["stages"]))
    assert any("trm.weight_base=3 wins over preset aggressive" in note for note in entry["notes"])


def test_plan_of_one_stage_is_a_plan_like_any_other() -> None:
    (entry,) = json.loads(windtunnel("plan", "trm", "--on", "8xH100", "--stage", "quality", "--json").stdout)
    assert "stages" not in entry
    assert entry["steps"] == 5000


def test_a_stage_without_its_gates_is_refused_with_the_command_that_runs_the_one_before(tmp_path: Path) -> None:
    done = windtunnel("train", "trm", "--stage", "quality", "--set", "model.depth=2", "--yes", cwd=tmp_path)
    assert done.returncode == 2
    assert "fix: windtunnel train trm --set model.depth=2 --stage validation" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [("--stage", "qualty"), ("--set", "trm.preset=extrem"), ("--set", "trm.halting=true")])
def test_bad_input_is_refused_before_torch_is_loaded(arguments: tuple[str, str]) -> None:
    code = f"""
import sys
from windtunnel.cli import main
try:
    main(["train", "trm", *{arguments!r}])
except SystemExit as end:
    print(end.code, "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG, check=False)
    assert done.stdout.split() == ["2", "False"]
    assert done.stderr.startswith("error: ")


def test_gates_fit_100_columns_and_name_number_and_advice(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = stage_recipe(load_recipe("trm"), "validation")
    falling = [Point(step, 9.0 - step / 50, 0.0) for step in range(100)]
    series = {f"validation_loss_step_{i}": [Point(90, 10.0 + i, 0.0)] for i in range(4)} | {
        "loss": falling, "refinement": [Point(90, -12.5, 0.0)], "gradient_norm": [Point(90, 123.4, 0.0)],
        "gpu_utilisation": [Point(90, 41.0, 0.0)],
    }  # fmt: skip
    report = StageReport("validation", Path("runs/x"), judge_gates(Gates(), recipe, series, gpus=True), "quality")
    show_gates(report, as_json=False)
    shown = capsys.readouterr().out
    table = [line for line in shown.splitlines() if "yes" in line or "NO" in line]
    assert len(table) == 5
    assert max(map(len, table)) <= 100
    for text in ("-12.5 %", "123.40", "halve the learning rates", "stage quality is not started"):
        assert text in shown
    show_gates(report, as_json=True)
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["held"], verdict["next"], len(verdict["gates"])) == (False, "quality", 5)


def test_no_gates_is_a_sentence_and_no_empty_table(capsys: pytest.CaptureFixture[str]) -> None:
    show_gates(StageReport("validation", Path("runs/x"), (), "quality"), as_json=False)
    shown = capsys.readouterr().out
    assert "none of them asks for anything" in shown
    assert "stage quality starts" in shown
    assert "measured" not in shown
    show_gates(StageReport("validation", Path("runs/x"), (), "quality"), as_json=False, alone=True)
    assert "may start: --stage quality" in capsys.readouterr().out


def test_a_stage_without_gates_is_said_to_have_none(capsys: pytest.CaptureFixture[str]) -> None:
    for options, verb in (({}, "starts"), ({"alone": True}, "may start with --stage quality")):
        show_gates(StageReport("validation", Path("runs/x"), None, "quality"), as_json=False, **options)
        assert f"stage validation has no gates (stages.validation.gates is null): stage quality {verb}" in capsys.readouterr().out
    show_gates(StageReport("validation", Path("runs/x"), None, "quality"), as_json=True)
    assert json.loads(capsys.readouterr().out)["gates"] is None


def test_a_stage_that_does_not_go_on_is_told_of_with_the_key_that_relaxes(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = stage_recipe(load_recipe("trm"), "validation")
    asked = Gates(order=False, refinement=None, gradient_norm=(3, 4), decreasing=False)
    results = judge_gates(asked, recipe, {"gradient_norm": [Point(90, 0.7, 0.0)]}, gpus=False)
    show_gates(StageReport("validation", Path("runs/x"), results, "quality", goes_on=True), as_json=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert "0.70" in shown
    assert "stage quality does not go on" in shown
    assert "--set stages.validation.gates.gradient_norm=..." in shown


def test_runs_shows_stages_and_gates_and_no_empty_columns_without_them(tmp_path: Path) -> None:
    from windtunnel.run import RunFolder

    judged = [{"name": "order", "held": True}, {"name": "refinement", "held": False}]
    for recipe, gates in (
        (load_recipe("charlm"), None),
        (stage_recipe(load_recipe("trm"), "validation"), judged),
        (stage_recipe(load_recipe("trm"), "quality"), judged[:1]),
        (stage_recipe(load_recipe("trm"), "quality"), []),
    ):
        with RunFolder.create(tmp_path / ("plain" if gates is None else "staged"), recipe, rig={}) as run:
            run.update(gates=gates)
    plain = windtunnel("runs", "--root", str(tmp_path / "plain")).stdout
    (columns,) = [line.split() for line in plain.splitlines() if "created" in line]
    assert not {"gates", "stage"} & set(columns)
    staged = windtunnel("runs", "--root", str(tmp_path / "staged")).stdout
    (first,) = [line for line in staged.splitlines() if "trm-validation-" in line]
    others = [line for line in staged.splitlines() if "trm-quality-" in line]
    assert "failed: refinement" in first
    assert sorted("held" in line for line in others) == sorted("none" in line.split() for line in others) == [False, True]
    listed = json.loads(windtunnel("runs", "--root", str(tmp_path / "staged"), "--json").stdout)
    assert {run["stage"]: run["gates"] for run in listed}["validation"] == {"order": True, "refinement": False}


def test_runs_of_stages_fit_a_terminal_of_100_columns_with_their_names_whole(tmp_path: Path) -> None:
    from windtunnel.run import RunFolder

    for stage in ("validation", "quality"):
        with RunFolder.create(tmp_path / "runs", stage_recipe(load_recipe("trm"), stage), rig={}) as run:
            run.update(gates=[{"name": "order", "held": True}, {"name": "refinement", "held": False}])
            run.finish("done", "budget.steps: 1,000 steps done")
    shown = on_a_terminal(["runs", "--root", str(tmp_path / "runs")], columns=100)
    assert {path.name for path in (tmp_path / "runs").iterdir()} <= set(shown.split())
    assert max(map(len, shown.splitlines())) <= 100
    assert len([line for line in shown.splitlines() if line.strip()]) <= 12  # two runs of a few lines each


def on_a_terminal(arguments: list[str], columns: int) -> str:
    """What a verb writes on a terminal of so many columns, without colours."""
    leader, follower = os.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-m", "windtunnel", *arguments]
    done = subprocess.run(command, stdout=follower, env=environment | {"TERM": "xterm"}, timeout=HANG, check=True)
    assert done.returncode == 0
    os.close(follower)
    return re.sub(r"\x1b\[[0-9;]*[a-zA-Z]", "", os.read(leader, 1 << 16).decode()).replace("\r", "")


TINY = """\
extends: charlm
name: gated
model: {depth: 1, aspect: 16, head_dim: 16, sequence: 32}
data: {corpus: {kind: arithmetic, documents: 2000, digits: 1, terms: 2}, validation: 0.05}
stages:
  prepare: {}
  pretrain: {batch_tokens: 512, micro_batch: 8, validate_every: 10 steps, validation_tokens: 1024}
  evaluate: {exact_match_problems: 10, samples: 0, bits_per_byte_tokens: 1024, gates: {bits_per_byte: 0.01}}
budget: {hours: null, steps: 20}
"""


def test_an_evaluation_that_misses_its_gate_ends_the_job_and_can_be_judged_again(tmp_path: Path) -> None:
    (tmp_path / "gated.yaml").write_text(TINY)
    prepared = windtunnel("train", "gated.yaml", "--stage", "prepare", "--json", cwd=tmp_path)
    assert prepared.returncode == 0, prepared.stderr
    assert json.loads(prepared.stdout)["train_tokens"] > 1000
    assert not (tmp_path / "runs").exists()
    trained = windtunnel("train", "gated.yaml", "--yes", cwd=tmp_path)
    assert trained.returncode == 1, trained.stdout + trained.stderr
    assert "at most 0.01" in trained.stdout
    again = windtunnel(
        "train", "gated.yaml", "--stage", "evaluate", "--set", "stages.evaluate.gates.bits_per_byte=9", cwd=tmp_path
    )
    assert again.returncode == 0, again.stdout + again.stderr
    (run,) = (tmp_path / "runs").iterdir()
    (run / "evaluation.json").unlink()
    page = run / "report.html"
    page.unlink()
    alone = windtunnel("evaluate", str(run), cwd=tmp_path)
    assert alone.returncode == 0, alone.stdout + alone.stderr
    assert "exact match" in page.read_text("utf-8")
