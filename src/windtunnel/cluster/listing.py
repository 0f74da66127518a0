"""Jobs from outside: how each stands, and ending one."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from windtunnel.recipe import UserError

from . import scheduler
from .job import SlurmJob, jobs_under
from .scheduler import Standing


@dataclass(frozen=True)
class JobLine:
    """How a job stands.

    Attributes:
        name: of its folder. id: Slurm's number. state: pending, running, done, stopped, failed, or 'unknown' where Slurm has
            forgotten the job without a word. nodes: where it runs. reason: why it waits, or ended.
        attempts: so far. run: its newest run's folder, or None. step: of that run's newest checkpoint.
        start: when Slurm expects it to start, while it waits.
    """

    name: str
    folder: Path
    id: str | None
    state: str
    nodes: str
    reason: str
    attempts: int
    run: Path | None
    step: int | None
    start: str = ""

    def describe(self) -> str:
        """Return one line about it, for a list of runs."""
        where = f" on {self.nodes}" if self.nodes else ""
        again = f", attempt {self.attempts}" if self.attempts > 1 else ""
        why = f": {self.reason}" if self.reason else ""
        return f"Slurm job {self.id} {self.state}{where}{again}{why}"


def list_jobs(root: Path) -> list[JobLine]:
    """Return the jobs of a folder of runs, the newest first. Slurm is asked once, and only where one may still wait or run."""
    jobs = list(jobs_under(root))
    # Asking for each would be a command a job; clusters ask not to poll squeue.
    open_ids = [job.id for job in jobs if job.state.end is None and job.id is not None]
    known: dict[str, Standing] | None = {}
    try:
        known = scheduler.standings(open_ids) if open_ids else {}
    except UserError:  # this machine reaches no Slurm
        known = None
    return [_line(job, known) for job in jobs]


def find_job(name: Path, root: Path) -> SlurmJob | None:
    """Return a job by its folder or its name under the root; None where there is none."""
    for folder in (name, root / "slurm" / name):
        if (folder / "job.json").is_file():
            return SlurmJob.open(folder)
    return None


def stop_job(job: SlurmJob, say: Callable[[str], None], *, kill: bool = False) -> str:
    """End a job from elsewhere: one that waits is cancelled, one that runs is told to save and end, and not to come back.

    Args:
        job: the job.
        say: told what is done.
        kill: end it at once, without a checkpoint.

    Returns:
        who asked, as the job's folder says it.

    Raises:
        UserError: its folder cannot be written, or Slurm refuses.
    """
    by = f"windtunnel stop, by {_user()} on {socket.gethostname()}"
    # First in the folder, so that the job does not come back whatever Slurm does.
    job.ask_to_stop(by)
    if job.id is None:
        return by
    try:
        standing = scheduler.standings([job.id]).get(job.id)
    except scheduler.Unreachable:  # the job looks into its folder too
        say(f"{job.name}: asked through its folder, since no Slurm answers here; a job that waits ends when it starts")
        return by
    if standing is None or standing.over:
        return by
    if kill or standing.state != "RUNNING":
        scheduler.cancel(job.id)
        state = job.state
        state.end = ("stopped", f"{by}{' --kill, without saving' if kill else ''}")
        job.save(state)
        say(f"cancelled Slurm job {job.id}, which {'ran' if standing.state == 'RUNNING' else 'waited'}")
    else:
        # To the batch step alone: srun's tasks would die of it.
        scheduler.signal_batch(job.id, "USR1")
        say(f"asked Slurm job {job.id} on {standing.nodes} to save and end")
    return by


def is_over(job: SlurmJob) -> bool:
    """Return whether a job neither runs nor waits; where no Slurm answers here, whether it has said so itself."""
    if job.state.end is not None or job.id is None:
        return True
    try:
        standing = scheduler.standings([job.id]).get(job.id)
    except scheduler.Unreachable:
        return False
    return standing is None or standing.over


def _line(job: SlurmJob, known: dict[str, Standing] | None) -> JobLine:
    state, number = job.state, job.id
    standing = (known or {}).get(number or "")
    runs = job.runs()
    run = runs[0].path if runs else None
    step = job.progress()[1] if run is not None else None
    name, nodes, reason, start = "unknown", "", "", ""
    if state.end is not None:
        name, reason = state.end
    elif known is None:
        name, reason = "unknown", "no Slurm answers here"
    elif standing is None:
        reason = "Slurm no longer knows the job"
    elif standing.over:
        name, reason = "failed", f"Slurm: {standing.state}" + (f", {standing.reason}" if standing.reason != "None" else "")
        if standing.state == "CANCELLED":
            name, reason = "stopped", "cancelled with scancel"
    elif standing.state == "PENDING":
        name, reason, start = "pending", standing.reason, standing.start
        if state.excluded:
            reason += f"; without {', '.join(state.excluded)}"
    else:
        name, nodes = standing.state.lower(), standing.nodes
        reason = state.attempts[-1].phase if state.attempts else ""
    saved = None if step is None or step < 0 else step
    return JobLine(job.name, job.path, number, name, nodes, reason, len(state.attempts), run, saved, start)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "somebody"
