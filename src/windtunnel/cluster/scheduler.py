"""Slurm's own commands, each with a time-out and its errors in words."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from windtunnel.recipe import UserError

# A busy controller answers late; one that does not answer by then is down.
SECONDS = 30.0
_FORMAT = "%i|%T|%N|%r|%S"


# Words of Slurm's refusals, in small letters, and what to do; the first that fits counts.
_UNREACHED = ("unable to contact", "configuration source", "connection refused")
_FIXES = (
    (
        ("node count", "node configuration", "more processors"),
        "ask for nodes that the partition has: sinfo --format='%P %D %G'; --on RIG or --slurm nodes=N",
    ),
    (("account", "qos"), "--slurm account=NAME or --slurm qos=NAME, as `sacctmgr show assoc` lists them"),
    (("time limit",), "a shorter --slurm time=H:MM:SS; sinfo --format='%P %l' shows the limits"),
)


class Unreachable(UserError):
    """Slurm's commands are here, or should be, and no controller answers them."""


@dataclass(frozen=True)
class Standing:
    """How a job stands with Slurm.

    Attributes:
        state: PENDING, RUNNING and so on, as Slurm writes it. nodes: where it runs, as n[1-2]. reason: why it waits.
        start: when it is expected to start, or started.
    """

    state: str
    nodes: str
    reason: str
    start: str

    @property
    def over(self) -> bool:
        """Whether it neither runs nor waits."""
        return self.state not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD",
                                  "SIGNALING", "STAGE_OUT", "STOPPED", "RESIZING", "SPECIAL_EXIT")  # fmt: skip


def submit(script: Path, *options: str) -> str:
    """Submit a batch script; returns the job's number. Raises UserError."""
    return _answer("sbatch", "--parsable", *options, str(script)).strip().partition(";")[0]


def try_submit(script: Path) -> str:
    """Ask Slurm whether it takes a script, without submitting it; returns when and where the job would start.

    Raises:
        UserError: it does not take it, or cannot be asked.
    """
    done = _run("sbatch", "--test-only", str(script))
    if done.returncode:
        raise refusal("sbatch --test-only", done.stderr)
    return (done.stderr.strip().splitlines() or [""])[-1].removeprefix("sbatch: ")


def standings(ids: Sequence[str]) -> dict[str, Standing]:
    """Return how jobs stand; one that Slurm has forgotten is not among them. Raises UserError."""
    if not ids:
        return {}
    done = _run("squeue", "--noheader", "--states=all", f"--format={_FORMAT}", f"--jobs={','.join(ids)}")
    # Slurm forgets a job some minutes after its end (MinJobAge).
    if done.returncode and "Invalid job id" not in done.stderr:  # which is said of a single job that is forgotten
        raise refusal("squeue", done.stderr)
    # Reasons have blanks and commas, but no bar.
    rows = [line.split("|") for line in done.stdout.splitlines() if line.count("|") >= 4]
    return {row[0].strip(): Standing(*row[1:5]) for row in rows}


def requeue(job: str) -> str | None:
    """Put the running job back into the queue, under the same number; returns why that cannot be, or None.

    Slurm then ends what runs of it, this process among it: SIGTERM, and SIGKILL after its KillWait.
    """
    done = _run("scontrol", "requeue", job)
    return None if done.returncode == 0 else _said(done.stderr)


def exclude(job: str, nodes: Sequence[str]) -> str | None:
    """Let a job that waits not use these nodes; returns why that cannot be, or None. Slurm refuses it while the job runs."""
    done = _run("scontrol", "update", f"JobId={job}", f"ExcNodeList={','.join(nodes)}")
    return None if done.returncode == 0 else _said(done.stderr)


def cancel(job: str) -> None:
    """End a job that waits or runs. Raises UserError."""
    _answer("scancel", job)


def signal_batch(job: str, name: str) -> None:
    """Send a signal to the job's batch step alone. Raises UserError."""
    _answer("scancel", "--batch", f"--signal={name}", job)


def host_names(nodes: str) -> list[str]:
    """Return the names in a list as Slurm writes it: n[1-2] is n1 and n2. Raises UserError."""
    return _answer("scontrol", "show", "hostnames", nodes).split()


def nodes_of(partition: str) -> list[str]:
    """Return the nodes of a partition that are up; none where Slurm does not tell."""
    try:
        done = _run("sinfo", "--noheader", "--Node", "--format=%N %t", f"--partition={partition}")
    except UserError:
        return []
    rows = [line.split() for line in done.stdout.splitlines()]
    return sorted({row[0] for row in rows if len(row) == 2 and not row[1].startswith(("down", "drain", "drng", "fail"))})


def partitions() -> list[str]:
    """Return the partitions' names; none where Slurm does not tell."""
    try:
        done = _run("sinfo", "--noheader", "--format=%R")
    except UserError:
        return []
    return sorted(set(done.stdout.split()))


def srun(nodes: Sequence[str]) -> list[str]:
    """Return the beginning of a command that runs one task on each of these nodes, beside what runs there already."""
    count = str(len(nodes))
    # --overlap: the batch step holds all CPUs of its node, and a step without it would wait for them for ever. One node's
    # failure must not end the others' reports.
    return ["srun", "--overlap", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", f"--nodelist={','.join(nodes)}",
            "--kill-on-bad-exit=0", "--export=ALL", "--mpi=none"]  # fmt: skip


def refusal(program: str, stderr: str) -> UserError:
    """Return what a command of Slurm refused, in words."""
    said = _said(stderr)
    if any(word in said.lower() for word in _UNREACHED):
        return Unreachable(f"{program}: {said}", "this machine reaches no Slurm: launch from a login node of the cluster")
    fix = next((fix for words, fix in _FIXES if any(word in said.lower() for word in words)), None)
    if "partition" in said.lower() and "invalid" in said.lower():
        fix = f"--slurm partition=NAME, one of: {', '.join(known)}" if (known := partitions()) else "sinfo"
    return UserError(f"{program}: {said}", fix or "correct the option that it names: --slurm KEY=VALUE")


def _said(stderr: str) -> str:
    """Return the line that says most: Slurm's last one repeats the first in general words."""
    # sbatch: error: ..., squeue: error: ...: the program's name is said already.
    lines = [line.partition("error: ")[2] or line for line in stderr.strip().splitlines() if line.strip()]
    return "; ".join(dict.fromkeys(line.strip() for line in lines[-2:])) or "failed without a word"


def _answer(program: str, *arguments: str) -> str:
    """Return what a command prints. Raises UserError where it refuses."""
    done = _run(program, *arguments)
    if done.returncode:
        raise refusal(program, done.stderr)
    return done.stdout


def _run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    found = shutil.which(program)
    if found is None:
        raise Unreachable(f"{program} is not installed here", "launch from a login node of the cluster, or --to ssh:HOST")
    try:
        return subprocess.run(
            [found, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=SECONDS,
            check=False, env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Unreachable(
            f"{program} did not answer within {SECONDS:.0f} s", "look whether slurmctld answers: scontrol ping; then try again"
        ) from None
    except OSError as error:
        raise UserError(f"{program} cannot be run: {error.strerror}") from None
