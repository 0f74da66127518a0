"""Batch scripts against rig, plan and a Slurm that answers as the real one does."""

import shutil
import stat
from pathlib import Path

import pytest

from windtunnel.check import Outcome, all_checks
from windtunnel.rehearse import Context, run_checks, select

GOOD = """#!/bin/bash
#SBATCH --job-name=charlm
#SBATCH --nodes=1
#SBATCH --gpus-per-node=h100:8
#SBATCH --partition=gpu
#SBATCH --time=02:00:00
#SBATCH --output=%x-%j.out

srun windtunnel train charlm --yes
"""
SINFO = "gpu*|up|2-00:00:00|4|gpu:h100:8(S:0-1)\ncpu|up|infinite|10|(null)\nold|down|1:00:00|2|gpu:v100:4\n"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that stand in for Slurm's: all of PATH, so that a Slurm of this machine is not asked."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program(folder / "sinfo", f"cat <<'END'\n{SINFO}END\n")
    for tool in ("bash", "sh", "cat", "sleep"):
        (folder / tool).symlink_to(shutil.which(tool) or f"/bin/{tool}")
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def launcher(folder: Path, text: str, on: str = "8xH100", *sets: str) -> Outcome:
    path = folder / "job.sbatch"
    path.write_text(text)
    context = Context("charlm", sets, (on,), folder=folder, sbatch=path)
    return {o.check: o for o in run_checks(select(all_checks(), ["launcher"]), context, isolate=False)}["launcher"]


def test_a_good_script_passes_with_and_without_slurm(tmp_path: Path, slurm: Path) -> None:
    made = launcher(tmp_path, GOOD)
    assert (made.status, made.warnings) == ("ok", ())
    assert "partition gpu" in made.evidence
    (slurm / "sinfo").unlink()
    assert "no Slurm here" in launcher(tmp_path, GOOD).evidence


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("--nodes=1", "--nodes=2", "asks for 2 nodes, 8xH100 has 1"),
        ("h100:8", "h100:4", "asks for 4 GPUs a node, 8xH100 has 8"),
        ("h100:8", "a100:8", "of kind a100"),
        ("#SBATCH --gpus-per-node=h100:8\n", "", "asks for no GPU"),
        ("02:00:00", "00:30:00", "less than the 1.00 h of the plan"),
        ("02:00:00", "3-00:00:00", "more than partition gpu allows"),
        ("--partition=gpu", "--partition=gpus", "no partition gpus"),
        ("--partition=gpu", "--partition=old", "partition old is down"),
        ("--partition=gpu", "--partition=cpu", "partition cpu has no GPUs"),
        ("%x-%j.out", "/gone/logs/%j.out", "no folder /gone/logs"),
        ("srun windtunnel train charlm --yes", "echo done", "starts nothing"),
        ("srun windtunnel", "if srun windtunnel", "bash does not understand"),
        ("--time", "--tiem", "no option --tiem"),
    ],
)
def test_what_would_fail_is_named(old: str, new: str, words: str, tmp_path: Path, slurm: Path) -> None:
    made = launcher(tmp_path, GOOD.replace(old, new))
    assert made.status == "fail"
    assert words in made.evidence
    assert made.fix


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("train charlm", "train other", "trains other"),
        (" --yes", "", "--yes"),
        ("#SBATCH --time=02:00:00\n", "", "no --time"),
        ("srun", "source gone/activate\nsrun", "reads gone/activate"),
    ],
)
def test_what_is_doubtful_warns(old: str, new: str, words: str, tmp_path: Path, slurm: Path) -> None:
    made = launcher(tmp_path, GOOD.replace(old, new))
    assert made.status == "warn"
    assert any(words in warning for warning in made.warnings), made.warnings


def test_slurm_itself_is_asked(tmp_path: Path, slurm: Path) -> None:
    program(slurm / "sbatch", "echo 'sbatch: error: Batch job submission failed: Invalid account' >&2; exit 1\n")
    assert "Invalid account" in launcher(tmp_path, GOOD).evidence
    program(slurm / "sinfo", "echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1\n")
    (slurm / "sbatch").unlink()
    assert "Unable to contact" in launcher(tmp_path, GOOD).warnings[0]


def test_a_slurm_that_hangs_is_left(tmp_path: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windtunnel.launch.checks.ASK_SECONDS", 0.3)
    program(slurm / "sinfo", "exec sleep 30\n")
    assert "does not answer" in launcher(tmp_path, GOOD).warnings[0]


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    context = Context("charlm", folder=tmp_path, sbatch=tmp_path / "gone.sbatch")
    made = run_checks(select(all_checks(), ["launcher"]), context, isolate=False)[-1]
    assert "gone.sbatch cannot be read" in made.evidence


def test_without_a_script_there_is_nothing_to_check(tmp_path: Path) -> None:
    context = Context("charlm", folder=tmp_path)
    assert "launcher" not in [o.check for o in run_checks(select(all_checks(), ["launcher"]), context, isolate=False)]
