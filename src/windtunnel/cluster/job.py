"""A job's folder below the runs: what was asked for, which Slurm jobs it became, each attempt, and how it ended.

ROOT/slurm/<recipe>-<UTC time>/
recipe.yaml   the recipe, with absolute places
job.sbatch    the batch script
job.json      what the script starts: this module's JobSpec
state.json    Slurm's job numbers and the attempts, written by the job itself
submitted     the job number that sbatch gave
stop          put there by `windtunnel stop`: who asked
output.log    what all attempts printed
nodes/        what each node said about itself, by attempt
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from windtunnel.files import write_atomic, write_json
from windtunnel.recipe import UserError
from windtunnel.run import RunFolder, RunSummary, list_runs

FOLDER = "slurm"
SPEC, STATE, SCRIPT, RECIPE, STOP, SUBMITTED, OUTPUT = (
    "job.json", "state.json", "job.sbatch", "recipe.yaml", "stop", "submitted", "output.log",
)  # fmt: skip
TEMPORARY = "wt-"
"""Before the job's number: its folder on each node's own disk."""
_STEP = re.compile(r"step-(\d+)(\.\d+)?")


@dataclass(frozen=True)
class JobSpec:
    """What a job starts; plain data, JSON.

    Attributes:
        recipe: the recipe's name. root: folder of the runs. workdir: where the job was asked for.
        python: the command that runs Python on a node, within a container where there is one.
        rig: its name. nodes, gpus_per_node: as asked for. gpu: the GPUs' name, or None.
        notice: seconds between Slurm's signal and the time limit.
        arguments: more of `windtunnel train`'s.
        models: folders that every node must see whole.
        disk_gib: that a run keeps. local_gib: free space that every node's temporary folder must have.
        ray: whether Ray is brought up over the nodes.
        temporary: the folder on each node's own disk for temporary files and caches.
    """

    recipe: str
    root: str
    workdir: str
    python: tuple[str, ...]
    rig: str
    nodes: int
    gpus_per_node: int
    gpu: str | None
    notice: int
    arguments: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    disk_gib: float = 0.0
    local_gib: float = 1.0
    ray: bool = False
    temporary: str = "/tmp"


@dataclass
class Attempt:
    """One start of the job.

    Attributes:
        id: Slurm's number. nodes: their names. phase: what it does, or did last.
        before, after: (runs, step of the newest checkpoint) when it began and when it ended.
        code: exit code of `windtunnel train`. signal: the signal that came, if any.
        status, reason: of the run in the end. bad: nodes that failed the checks, each with why.
    """

    id: str
    nodes: list[str]
    began: float
    before: tuple[int, int] = (0, -1)
    after: tuple[int, int] | None = None
    phase: str = "starting"
    ended: float | None = None
    code: int | None = None
    signal: str | None = None
    status: str | None = None
    reason: str | None = None
    bad: dict[str, str] = field(default_factory=dict)

    @property
    def moved(self) -> bool:
        """Whether a later checkpoint was there at its end than at its beginning."""
        # More runs count before steps: a new stage begins at step 0. Tuples, since JSON gave lists.
        return tuple(self.after or self.before) > tuple(self.before)


@dataclass
class State:
    """What has become of a job. Attributes: excluded: nodes not to be used. end: (done, stopped or failed; why)."""

    attempts: list[Attempt] = field(default_factory=list)
    excluded: list[str] = field(default_factory=list)
    successor: str | None = None
    end: tuple[str, str] | None = None


@dataclass(frozen=True)
class SlurmJob:
    """A job's folder. Attributes: path: of it. spec: what it starts."""

    path: Path
    spec: JobSpec

    @classmethod
    def open(cls, path: Path) -> SlurmJob:
        """Read a job's folder. Raises UserError."""
        try:
            data = json.loads((path / SPEC).read_text(encoding="utf-8"))
            # JSON has lists where the spec has tuples.
            lists = {key: tuple(value) for key, value in data.items() if isinstance(value, list)}
            return cls(path.resolve(), JobSpec(**{**data, **lists}))
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{path} is no folder of a Slurm job: {error}", "windtunnel launch --status --to slurm") from None

    @classmethod
    def create(cls, path: Path, spec: JobSpec, *, script: str, recipe: str) -> SlurmJob:
        """Write a job's folder. Raises UserError."""
        try:
            path.mkdir(parents=True)
            write_json(path / SPEC, asdict(spec))
            write_atomic(path / SCRIPT, script)
            write_atomic(path / RECIPE, recipe)
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror or error}", "give another --root") from None
        return cls(path.resolve(), spec)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def state(self) -> State:
        """What has become of it, as far as the job has told."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            data = json.loads((self.path / STATE).read_text(encoding="utf-8"))
            attempts = [Attempt(**item) for item in data.pop("attempts")]
            return State(attempts=attempts, **{**data, "end": tuple(data["end"]) if data["end"] else None})
        return State()

    def save(self, state: State) -> None:
        """Write what has become of it. Raises OSError."""
        write_json(self.path / STATE, asdict(state))

    @property
    def id(self) -> str | None:
        """Slurm's number of what runs or waits now, or ran last; None before it was submitted."""
        state = self.state
        # Where a job cannot be requeued, another one follows under its own number.
        if state.successor:
            return state.successor
        if state.attempts:
            return state.attempts[-1].id
        with contextlib.suppress(OSError):
            return (self.path / SUBMITTED).read_text(encoding="utf-8").strip() or None
        return None

    def submitted(self, number: str) -> None:
        """Keep the number that sbatch gave. Raises OSError."""
        write_atomic(self.path / SUBMITTED, number + "\n")

    @property
    def stop(self) -> str | None:
        """Who asked the job to stop; None where nobody did."""
        with contextlib.suppress(OSError):
            return (self.path / STOP).read_text(encoding="utf-8").strip() or "windtunnel stop"
        return None

    def ask_to_stop(self, by: str) -> None:
        """Leave word that the job is to end, whatever it does now. Raises UserError."""
        try:
            write_atomic(self.path / STOP, by + "\n")
        except OSError as error:
            raise UserError(f"{self.path} cannot be written: {error.strerror or error}") from None

    def runs(self) -> list[RunSummary]:
        """Return the runs that the job has made, the newest first."""
        # By what each manifest says, not by its place: runs are renamed and moved.
        return [run for run in list_runs(self.spec.root) if job_of(run.path) == self.path]

    def progress(self) -> tuple[int, int]:
        """Return how many runs it has made and the step of the newest one's last checkpoint; -1: none is saved."""
        runs = self.runs()
        return (len(runs), _saved(runs[0].path)) if runs else (0, -1)


def job_of(run: Path) -> Path | None:
    """Return the folder of the job that made a run; None where none did."""
    with contextlib.suppress(UserError):
        made = RunFolder.open(run).manifest.get("job")
        return Path(made) if made else None
    return None


def jobs_under(root: Path) -> Iterator[SlurmJob]:
    """Yield the jobs of a folder of runs, the newest first."""
    for path in sorted((root / FOLDER).glob(f"*/{SPEC}"), key=lambda path: path.stat().st_mtime, reverse=True):
        with contextlib.suppress(UserError):
            yield SlurmJob.open(path.parent)


def _saved(run: Path) -> int:
    """Return the step of the newest checkpoint that is listed; -1: there is none."""
    # checkpoint.json is written last: a folder without it is half a checkpoint.
    found = [_STEP.fullmatch(path.parent.name) for path in run.glob("checkpoints/step-*/checkpoint.json")]
    return max((int(match[1]) for match in found if match), default=-1)
