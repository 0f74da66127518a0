"""Jobs under a real Slurm of two nodes: submitted, told to save, requeued, gone on with, looked at, stopped."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slurm_here import SlurmHere
from waiting import HANG, until

from windtunnel.cluster import SlurmJob
from windtunnel.run import MetricsReader

pytestmark = pytest.mark.end_to_end

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def windtunnel(slurm: SlurmHere, tmp_path: Path) -> Command:
    """Runs the command in the test's folder, where it reaches that Slurm."""

    def call(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "windtunnel", *arguments], cwd=tmp_path, env=slurm.environment, capture_output=True, text=True,
            timeout=HANG, check=False,
        )  # fmt: skip

    return call


def submit(windtunnel: Command, *arguments: str) -> SlurmJob:
    done = windtunnel("launch", "tiny.yaml", "--on", "cpu", "--to", "slurm", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return SlurmJob.open(Path(json.loads(done.stdout)["folder"]))


def listed(windtunnel: Command) -> dict[str, Any]:
    return json.loads(windtunnel("launch", "--status", "--to", "slurm", "--json").stdout)[0]


def steps_of(run: Path) -> list[int]:
    with MetricsReader(run / "metrics.sqlite") as reader:
        return [point.step for point in reader.series("loss")]


def output(job: SlurmJob) -> str:
    return (job.path / "output.log").read_text() if (job.path / "output.log").exists() else "nothing was printed"


def test_a_job_that_is_told_to_save_is_requeued_and_goes_on_until_it_is_stopped(
    slurm: SlurmHere, windtunnel: Command, recipe: Path
) -> None:
    job = submit(windtunnel)
    number = job.id
    assert number is not None
    until(lambda: job.progress()[1] >= 20, f"no checkpoint\n{output(job)}")
    line = listed(windtunnel)
    assert (line["state"], line["id"], line["attempts"], line["nodes"]) == ("running", number, 1, "n1")
    slurm.run("scancel", "--batch", "--signal=USR1", number)  # as Slurm does it before the time limit
    until(lambda: len(job.state.attempts) == 2, f"it was not requeued\n{output(job)}")
    first, second = job.state.attempts
    assert first.code == 3
    assert first.signal == "SIGUSR1"
    assert first.moved
    assert second.id == number
    assert tuple(second.before) == tuple(first.after or ())
    assert second.before[1] >= 20
    until(lambda: job.progress()[1] > second.before[1], f"it did not go on\n{output(job)}")
    assert job.progress()[0] == 1  # the same run

    run = job.runs()[0].path
    stopped = windtunnel("stop", run.name)
    assert stopped.returncode == 0, stopped.stderr
    assert "windtunnel stop, by" in stopped.stdout
    assert job.state.end is not None
    assert job.state.end[0] == "stopped"
    assert slurm.state(number) in ("COMPLETED", "FAILED")  # and not in the queue again
    steps = steps_of(run)
    assert steps == sorted(steps)
    assert not Path(f"/tmp/wt-{number}").exists()


def test_a_job_that_waits_is_shown_with_its_reason_and_can_be_stopped(
    slurm: SlurmHere, windtunnel: Command, recipe: Path
) -> None:
    job = submit(windtunnel, "--slurm", "begin=now+1hour")
    line = listed(windtunnel)
    assert (line["state"], line["reason"], line["run"], line["id"]) == ("pending", "BeginTime", None, job.id)
    assert "pending: BeginTime" in windtunnel("runs").stdout.replace("\n", " ")
    told = json.loads(windtunnel("stop", job.name, "--json").stdout)
    assert (told["run"], told["status"]) == (None, "stopped")
    until(lambda: slurm.state(job.id or "") == "CANCELLED", "it was not cancelled")
    assert listed(windtunnel)["state"] == "stopped"


def test_a_job_of_bad_input_ends_at_once_with_its_reason(slurm: SlurmHere, windtunnel: Command, recipe: Path) -> None:
    job = submit(windtunnel)
    (job.path / "recipe.yaml").write_text("name: broken\nmodell: {}\n")
    until(lambda: job.state.end is not None, f"it did not end\n{output(job)}")
    if job.state.attempts[0].code == 2:  # otherwise it had read the recipe before
        assert job.state.end
        assert job.state.end[0] == "failed"
        assert len(job.state.attempts) == 1


@pytest.mark.slow
def test_within_an_allocation_the_job_runs_there_and_then(slurm: SlurmHere, recipe: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "windtunnel",
        "launch",
        "tiny.yaml",
        "--on",
        "cpu",
        "--to",
        "slurm",
        "--set",
        "budget.steps=3",
    ]
    done = subprocess.run(
        ["salloc", "--nodes=1", *command], cwd=recipe.parent, env=slurm.environment, capture_output=True, text=True, timeout=HANG,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the job runs here, now" in done.stderr
    assert "[job] done: budget.steps: 3 steps done" in done.stdout


SMI = """#!/bin/sh
errors=0
if [ "$SLURMD_NODENAME" = n1 ]; then errors=3; fi
echo "0, NVIDIA H100 80GB HBM3, 4, $errors, No, No, No"
"""


@pytest.mark.slow
def test_a_node_with_a_broken_gpu_is_named_and_excluded_and_the_job_comes_back_on_another(
    slurm: SlurmHere, windtunnel: Command, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvidia-smi").write_text(SMI)
    (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
    monkeypatch.setitem(slurm.environment, "PATH", f"{tmp_path / 'bin'}:{slurm.environment['PATH']}")
    done = windtunnel("launch", "tiny.yaml", "--on", "H100", "--to", "slurm", "--json", "--set", "budget.steps=3")
    assert done.returncode == 0, done.stderr
    job = SlurmJob.open(Path(json.loads(done.stdout)["folder"]))
    until(lambda: job.state.end is not None, f"it did not end\n{output(job)}")
    first, second = job.state.attempts
    assert (first.nodes, second.nodes, job.state.excluded) == (["n1"], ["n2"], ["n1"])
    assert first.bad == {"n1": "GPU 0: 3 memory errors that were not corrected"}
    assert "BAD: GPU 0: 3 memory errors" in output(job)
    assert job.state.end == ("done", job.runs()[0].reason)


@pytest.mark.parametrize(
    ("arguments", "words", "fix"),
    [
        (["--slurm", "partition=gpux"], "invalid partition", "one of: main, urgent"),
        (["--slurm", "nodelist=n7"], "Invalid node name", ""),
        (["--slurm", "time=3-0"], "PartitionTimeLimit", "sinfo"),
        (["--on", "8xH100"], "node configuration", "sinfo"),
    ],
)
def test_what_slurm_does_not_take_is_named_and_leaves_nothing(
    arguments: list[str], words: str, fix: str, slurm: SlurmHere, windtunnel: Command, recipe: Path
) -> None:
    on = [] if "--on" in arguments else ["--on", "cpu"]
    done = windtunnel("launch", "tiny.yaml", *on, "--to", "slurm", *arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert words.lower() in done.stderr.lower()
    assert fix in done.stderr
    assert not list(Path("runs").glob("slurm/*"))


def test_the_script_is_taken_by_slurm_and_printed(slurm: SlurmHere, windtunnel: Command, recipe: Path) -> None:
    done = windtunnel("launch", "tiny.yaml", "--on", "cpu", "--to", "slurm", "--dry-run", "--slurm", "exclude=n1")
    assert done.returncode == 0, done.stderr
    assert "on nodes n2 in partition main" in done.stderr
    assert "#SBATCH --exclude=n1\n" in done.stdout
    assert not Path("runs/slurm").exists()
