"""The command line as a user meets it: real processes, exit codes, speed, no tracebacks, no torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from windtunnel.recipe import load_recipe
from windtunnel.run import RunFolder

VERBS = ["plan", "check", "rehearse", "train", "evaluate", "serve", "watch", "runs", "export"]
PLENTY = 0.5  # seconds a refusal may take


def windtunnel(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "windtunnel", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=cwd, check=False)


def best_cpu_seconds(*arguments: str) -> float:
    """Processor time of the quickest of five runs: what it takes on a machine that does nothing else."""
    best = float("inf")
    for _ in range(5):
        before, start = os.times(), time.perf_counter()
        windtunnel(*arguments)
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        best = min(best, used, time.perf_counter() - start)
    return best


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("train", "--help"),
        ("train", "charlm", "--set", "model.deth=3"),
        ("plan", "nosuch"),
        ("train", "/etc/hostname"),
    ],
)
@pytest.mark.alone
def test_help_and_refusals_answer_in_under_half_a_second(arguments: tuple[str, ...]) -> None:
    assert best_cpu_seconds(*arguments) < PLENTY


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str) -> None:
    done = windtunnel(verb, "--help")
    assert done.returncode == 0
    assert f"windtunnel {verb}" in done.stdout


def test_top_level_help_lists_verbs_and_exit_codes() -> None:
    done = windtunnel("--help")
    assert done.returncode == 0
    for verb in VERBS:
        assert verb in done.stdout
    assert "Exit codes" in done.stdout


def test_version() -> None:
    assert windtunnel("--version").stdout.startswith("windtunnel 0.")


@pytest.mark.parametrize("verb", ["plan", "train", "rehearse"])
def test_a_refused_recipe_exits_2_and_names_the_key(verb: str) -> None:
    done = windtunnel(verb, "charlm", "--set", "model.deth=3")
    assert done.returncode == 2
    assert done.stderr == "error: --set model.deth=3: model.deth: unknown key; nearest: depth\n"
    assert done.stdout == ""


def test_a_refusal_with_json_is_json_on_standard_error() -> None:
    done = windtunnel("train", "charml", "--json")
    assert done.returncode == 2
    assert json.loads(done.stderr) == {"error": "no recipe named 'charml'", "fix": "did you mean charlm?", "exit_code": 2}
    assert done.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan",),
        ("fly",),
        ("train", "charlm", "--no-such-flag"),
        ("serve", "x", "--port", "70000"),
        ("train", "charlm", "--gpus", "0"),
    ],
)
def test_usage_errors_exit_2_without_traceback(arguments: tuple[str, ...]) -> None:
    done = windtunnel(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "Usage: windtunnel" in done.stderr


@pytest.mark.parametrize("verb", ["serve", "evaluate", "watch", "export"])
def test_a_missing_run_names_the_nearest(verb: str, tmp_path: Path) -> None:
    (tmp_path / "runs" / "charlm-20260101-120000").mkdir(parents=True)
    done = windtunnel(verb, "charlm-20260101", cwd=tmp_path)
    assert done.returncode == 2
    assert "nearest: runs/charlm-20260101-120000" in done.stderr
    assert "Traceback" not in done.stderr


def test_runs_of_an_empty_folder(tmp_path: Path) -> None:
    pytest.importorskip("windtunnel.run", exc_type=ImportError)
    done = windtunnel("runs", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "no runs under runs/" in done.stdout
    assert json.loads(windtunnel("runs", "--json", cwd=tmp_path).stdout) == []


def test_runs_says_why_a_run_failed(tmp_path: Path) -> None:
    for status, reason in (("done", "budget.steps: 5 steps done"), ("failed", "budget.steps: 5 steps done; not saved")):
        with RunFolder.create(tmp_path / "runs", load_recipe("charlm"), rig={}) as run:
            run.finish(status, reason)  # type: ignore[arg-type]
    shown = windtunnel("runs", cwd=tmp_path).stdout
    assert shown.count("5 steps done") == 1
    assert "5 steps done; not saved" in shown


def test_interrupt_exits_130_without_traceback() -> None:
    """A pipe holds 64 kB: that more of them were taken shows that the command is reading, and it reads on to the end."""
    command = [sys.executable, "-m", "windtunnel", "train", "/dev/stdin"]
    # A shell starts what it puts into the background with SIGINT ignored, and these tests may run there.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heed)
    assert process.stdin is not None
    process.stdin.write(b"# a comment\n" * 25_000)
    process.stdin.flush()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in errors


TORCH_FREE = {
    "recipe": "import windtunnel.recipe as r; r.scale_model(r.load_recipe('charlm'))",
    "rig": "import windtunnel.rig as r; r.parse_rig('8xH100')",
    "model arithmetic": (
        "import windtunnel.model as m, windtunnel.recipe as r; m.derive(r.load_recipe('charlm', ['model.depth=12']), vocab=18)"
    ),
    "plan": (
        "import windtunnel.plan as p, windtunnel.rig as g, windtunnel.recipe as r;"
        "p.make_plan(r.load_recipe('charlm'), g.parse_rig('8xH100'))"
    ),
    "cli": "import windtunnel.cli",
    "run": "import windtunnel.run",
    "watch": "import windtunnel.watch",
}


@pytest.mark.parametrize("room", TORCH_FREE)
def test_rooms_that_promise_it_do_not_import_torch(room: str) -> None:
    code = (
        TORCH_FREE[room]
        + "\nimport sys; heavy = {'torch', 'transformers', 'matplotlib'} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
