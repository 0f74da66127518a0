"""`windtunnel rehearse` as it is called: whole rehearsals in processes of their own, and what goes wrong in them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from waiting import HANG

from windtunnel.run import MetricsReader

pytestmark = pytest.mark.end_to_end

STAGES = ["kill", "resume", "bit-exact", "ranks", "learning", "saving", "export", "evaluate", "serve"]


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def windtunnel(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "windtunnel", *arguments], cwd=cwd, text=True, capture_output=True, timeout=600, check=False
    )


def children_of(folder: Path) -> list[psutil.Process]:
    """Processes that work in a rehearsal's folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        if str(folder) in " ".join(process.info["cmdline"] or []) or process.info["cwd"] == str(folder):
            found.append(process)
    return found


@pytest.mark.timeout(600)
def test_a_short_rehearsal_is_ready_with_evidence_for_every_check(tmp_path: Path) -> None:
    done = windtunnel("rehearse", "charlm", "--steps", "24", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    checks = {check["check"]: check for check in report["checks"]}
    assert list(checks)[-len(STAGES) :] == STAGES
    assert {"recipe", "machine", "disk", "data", "plan", "budget", "model"} < set(checks)
    assert report["ready"] is True
    assert not [c for c in checks.values() if c["status"] == "fail"]
    assert checks["kill"]["numbers"]["good_step"] == checks["resume"]["numbers"]["resumed_from"]
    assert ".tmp-" in checks["kill"]["evidence"]
    assert checks["bit-exact"]["numbers"]["last_step"] > checks["resume"]["numbers"]["resumed_from"]
    assert checks["export"]["numbers"]["largest_difference"] == 0
    assert checks["evaluate"]["numbers"]["exact_match"]["n"] == 100
    assert checks["serve"]["found_later"]["dollars"] > 1
    folder = tmp_path / report["folder"]
    page = (folder / "report.html").read_text()
    curves = json.loads(page.partition('id="curves">')[2].partition("</script>")[0])
    assert {"Loss", "Memory"} <= {chart["title"] for chart in curves["runs"][0]["charts"]}
    assert "<svg" in page  # planned memory
    assert json.loads((folder / "report.json").read_text()) == report
    runs = list((folder / "killed").iterdir())
    assert len(runs) == 1
    with MetricsReader(runs[0] / "metrics.sqlite") as metrics:
        assert [point.step for point in metrics.series("loss")] == list(range(1, 25))
    assert not children_of(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_whole_rehearsal_learns(tmp_path: Path) -> None:
    done = windtunnel("rehearse", "charlm", "--on", "H200", "--on", "8xH100", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "READY on rung" in done.stdout
    assert "H200" in done.stdout
    assert max(map(len, done.stdout.splitlines()[-60:])) <= 100


def test_missing_data_and_a_target_too_small_fail_say_what_and_go_on_where_they_can(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(
        "extends: charlm\nname: own\n"
        "data: {corpus: {kind: text, files: [missing.txt]}, tokenizer: {kind: character, alphabet: auto}}\n"
    )
    done = windtunnel("rehearse", "own.yaml", "--set", "model.depth=64", "--on", "RTX4090", cwd=tmp_path)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert "missing.txt" in done.stdout
    assert "NOT READY" in done.stdout
    assert "give an existing file" in done.stdout
    report = json.loads(next((tmp_path / "runs").glob("*/report.json")).read_text())
    status = {check["check"]: check["status"] for check in report["checks"]}
    assert (status["data-files"], status["data"], status["plan"]) == ("fail", "skip", "fail")
    assert "--set model.depth=" in next(check["remedy"] for check in report["checks"] if check["check"] == "plan")
    assert status["machine"] == status["clock"] == "ok"
    assert {status[name] for name in STAGES} == {"skip"}
    assert (tmp_path / report["report"]).is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "no recipe named 'nothing'"),
        (["charlm", "--on", "8xH10"], "H100"),
        (["charlm", "--steps", "5"], "at least 24"),
        (["charlm", "--root", "file/runs"], "cannot be made"),
        (["charlm", "--set", "model.dept=3"], "model.dept"),
    ],
)
def test_bad_input_exits_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "file").write_text("")
    done = windtunnel("rehearse", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_sigterm_ends_the_rehearsal_and_its_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "windtunnel", "rehearse", "charlm"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + HANG
    while not list(tmp_path.glob("runs/*/killed/*/manifest.json")) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=HANG)
    assert process.returncode == 130
    assert "Traceback" not in output
    assert not children_of(tmp_path)
