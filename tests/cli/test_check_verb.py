"""`windtunnel check` as it is called: verdicts, exit codes, JSON, page, choice of checks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import zygote
from waiting import HANG

QUICK = [word for name in ("plan", "budget", "disk", "variables") for word in ("--only", name)]


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def windtunnel(*arguments: str, cwd: Path, seconds: float = HANG) -> subprocess.CompletedProcess[str]:
    return zygote.windtunnel("check", *arguments, cwd=cwd, timeout=seconds)


def test_a_ready_recipe_in_the_terminal_and_as_a_page(tmp_path: Path) -> None:
    done = windtunnel("charlm", *QUICK, "--html", "check.html", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines[lines.index("") :])) <= 100
    for words in ("READY: charlm for 8xH100", "rung cpu", "next: windtunnel rehearse charlm --on 8xH100", "report: check.html"):
        assert words in done.stdout
    page = (tmp_path / "check.html").read_text()
    assert "<h2>Rungs</h2>" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert [path.name for path in tmp_path.iterdir()] == ["check.html"]


def test_the_report_in_a_pipe_is_as_wide_as_columns_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = windtunnel("charlm", "--only", "variables", cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert 60 < max(map(len, lines[lines.index("") :])) <= 80


def test_a_failure_exits_1_and_is_priced(tmp_path: Path) -> None:
    done = windtunnel("charlm", *QUICK, "--set", "budget.steps=20", "--json", cwd=tmp_path)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    checks = {check["check"]: check for check in report["checks"]}
    assert (report["ready"], checks["budget"]["status"], checks["plan"]["status"]) == (False, "fail", "ok")
    assert checks["budget"]["found_later"]["dollars"] > 0
    assert checks["budget"]["remedy"].startswith("--set stages.pretrain.schedule.warmup_steps=")
    assert [(rung["rung"], rung["ready"]) for rung in report["rungs"]] == [("cpu", True), ("gpu", True), ("node", False)]
    assert "budget:" in done.stderr  # progress


@pytest.mark.parametrize(
    ("arguments", "check", "words"),
    [
        (["nothing"], "recipe", "no recipe named 'nothing'"),
        (["charlm", "--set", "model.dept=3"], "recipe", "nearest: depth"),
        (["charlm", "--on", "8xH10"], "rig", "no GPU or instance named 'H10'"),
    ],
)
def test_bad_input_exits_2_with_a_report_all_the_same(arguments: list[str], check: str, words: str, tmp_path: Path) -> None:
    done = windtunnel(*arguments, "--json", "--only", "plan", "--only", "clock", cwd=tmp_path)
    assert done.returncode == 2
    checks = {c["check"]: c for c in json.loads(done.stdout)["checks"]}
    assert checks[check]["status"] == "fail"
    assert words in checks[check]["evidence"]
    assert checks["plan"]["needs_failed"] == [check]
    assert checks["clock"]["status"] == "ok"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["charlm", "--only", "plam"], "did you mean plan?"),
        (["charlm", "--sbatch", "gone.sbatch"], "--sbatch gone.sbatch does not exist"),
        (["charlm", "--sbatch", "."], "--sbatch . is a folder"),
        (["charlm", "--resume", "gone"], "no run folder gone"),
        (["charlm", "--html", "gone/check.html"], "there is no folder"),
        (["charlm", "--html", "."], "is a folder"),
    ],
)
def test_a_call_that_means_nothing_exits_2_at_once(arguments: list[str], words: str, tmp_path: Path) -> None:
    done = windtunnel(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_the_list_names_what_each_proves(tmp_path: Path) -> None:
    listed = json.loads(windtunnel("--list", "--json", cwd=tmp_path).stdout)
    assert {"recipe", "plan", "disk", "launcher"} <= {check["check"] for check in listed}
    assert "the clock is right and steady" in windtunnel("--list", cwd=tmp_path).stdout


@pytest.mark.end_to_end
def test_a_module_in_the_current_folder_that_hides_one_of_pythons(tmp_path: Path) -> None:
    (tmp_path / "secrets.py").write_text("raise RuntimeError('mine')\n")
    done = subprocess.run(
        [str(Path(sys.executable).parent / "windtunnel"), "check", "charlm", "--only", "imports"],
        capture_output=True, text=True, timeout=HANG, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "secrets.py hides the module secrets" in done.stdout


def test_sigterm_ends_the_check_and_its_processes(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "windtunnel", "check", "charlm"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + HANG
    while not (children := psutil.Process(process.pid).children(recursive=True)) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=HANG)
    assert "Traceback" not in output
    _, alive = psutil.wait_procs(children, timeout=HANG)
    assert not alive
    assert list(tmp_path.glob("windtunnel-check-*")) == []


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_whole_check_of_the_shipped_recipe(tmp_path: Path) -> None:
    done = windtunnel("charlm", "--on", "8xH100", "--json", cwd=tmp_path, seconds=300)
    report = json.loads(done.stdout)
    assert done.returncode == 0, [c for c in report["checks"] if c["status"] == "fail"]
    assert len(report["checks"]) > 25
