"""What a job runs: check the nodes, train or go on, and then end, or go back into the queue.

The process is the job's batch step. Slurm's signal before the time limit, SIGTERM and `windtunnel stop` all reach it; it hands
them to the training, which saves.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from windtunnel.files import write_atomic
from windtunnel.recipe import UserError
from windtunnel.run import JOB_VARIABLE, STARTED, STOP_FILE

from . import scheduler
from .chain import next_move
from .job import RECIPE, SCRIPT, TEMPORARY, Attempt, SlurmJob, State
from .nodes import everywhere, judge, read_reports, serve_clock, table, waited_for
from .ray_cluster import TICK, RayCluster, ticks
from .ray_node import end_process

# Links alone have 100 (`probe.LINK_SECONDS`), and Python starts slowly from a shared disk.
PROBE_SECONDS = 150.0
"""For all nodes to report, links included."""
END_SECONDS = 10.0
"""Between SIGTERM and SIGKILL."""
CLEAN_SECONDS = 20.0
"""For the other nodes to remove their temporary folders."""
CANCELLED_SECONDS, CANCELLED_RAY_SECONDS = 2.0, 5.0
"""For each part of Ray, and for a run on Ray, to end where Slurm ends the job, and kills what is left after 30 s by default."""
WORDS_SECONDS = 3.0
"""A run that trains reads within a second who asked it to stop; one that does not train yet is sent a signal after these."""
# USR1 is what the script asks Slurm for before the time limit; TERM is scancel, preemption and shutdown.
SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
_CODES = {"done": 0, "failed": 1, "stopped": 3, "again": 0}


@dataclass(frozen=True)
class Allocation:
    """What Slurm gave. Attributes: id: the job's number. nodes: names. batch: whether it can be requeued."""

    id: str
    nodes: tuple[str, ...]
    batch: bool

    @classmethod
    def here(cls) -> Allocation:
        """Return the allocation that this process runs in. Raises UserError where it runs in none."""
        number, nodes = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_JOB_NODELIST")
        if not number or not nodes:
            raise UserError("this is for a job of Slurm: SLURM_JOB_ID is not set", "windtunnel launch RECIPE --to slurm")
        # A batch step has a script that can run again; a shell that salloc started has none.
        return cls(number, tuple(scheduler.host_names(nodes)), os.environ.get("ENVIRONMENT") == "BATCH")


def run_job(path: Path) -> int:
    """Run one attempt of a job in the allocation that this process is in; returns the exit code. Raises UserError."""
    job = SlurmJob.open(path)
    return Driver(job, Allocation.here()).run()


@dataclass
class Driver:
    """One attempt. Attributes: job: its folder. given: the allocation."""

    job: SlurmJob
    given: Allocation
    _signal: str | None = None
    _told: float | None = None
    _signalled: bool = False
    _cancelled: float | None = None
    _state: State = field(default_factory=State)

    def run(self) -> int:
        """Do everything; returns the exit code."""
        # The nodes are paid for while they are checked, so the budget counts from here.
        os.environ.setdefault(STARTED, repr(time.time()))
        os.environ[JOB_VARIABLE] = str(self.job.path)  # by which runs know the job that made them
        with self._signals():
            attempt = self._begin()
            try:
                self._attempt(attempt)
            except UserError as error:
                attempt.code, attempt.reason = error.exit_code, error.message
                say(f"error: {error}")
            finally:
                self._clean()
            return self._end(attempt)

    @property
    def asked(self) -> str | None:
        """Why this attempt is to end; None while it is not."""
        return self._signal or self.job.stop

    @property
    def _late(self) -> bool:
        """Return whether to end a run that was cancelled: Slurm has ended its Ray already, for which it would wait a minute."""
        return self.job.spec.ray and self._cancelled is not None and time.monotonic() - self._cancelled > CANCELLED_RAY_SECONDS

    def phase(self, attempt: Attempt, text: str) -> None:
        """Say and keep what is done now."""
        attempt.phase = text
        self.job.save(self._state)
        say(text)

    def _begin(self) -> Attempt:
        """Close what an attempt before this one left open, and open a new one."""
        state = self._state = self.job.state
        now, progress = time.time(), self.job.progress()
        # A node that died, or a SIGKILL after the time limit, ended it before it could write. The run's progress says what it
        # got done, and so whether the chain goes on.
        for lost in state.attempts:
            if lost.ended is None:
                lost.ended, lost.after = now, progress
        state.end, state.successor = None, None
        attempt = Attempt(self.given.id, list(self.given.nodes), now, before=progress)
        state.attempts.append(attempt)
        self.job.save(state)
        say(f"attempt {len(state.attempts)} of {self.job.name}: job {self.given.id} on {', '.join(self.given.nodes)}")
        return attempt

    def _attempt(self, attempt: Attempt) -> None:
        before = self._state.attempts[:-1]
        # A SIGKILL or a dead node cannot write what follows: the next attempt judges for it.
        if before and before[-1].code is None and not before[-1].bad:
            move = next_move(before)  # one that was lost has not judged itself
            if move.kind == "failed":
                raise UserError(move.why, "look into output.log; then start again: sbatch job.sbatch")
        if self.asked is None:
            self.phase(attempt, "checking nodes")
            self._check_nodes(attempt)
        ray = self._ray(attempt) if self.job.spec.ray and self.asked is None and not attempt.bad else None
        try:
            if self.asked is None and not attempt.bad:
                self.phase(attempt, "training")
                self._train(attempt)
        finally:
            if ray is not None:
                ray.down(*([] if self._cancelled is None else [CANCELLED_SECONDS]))

    def _ray(self, attempt: Attempt) -> RayCluster:
        """Bring Ray up over all nodes; those that do not join are bad. Raises UserError."""
        self.phase(attempt, "starting Ray")
        spec, logs = self.job.spec, self.job.path / "nodes" / str(len(self._state.attempts))
        cluster = RayCluster(spec.python, self.given.nodes, spec.gpus_per_node, logs)
        try:
            # BaseException: a signal too must not leave Ray behind on the nodes.
            missing = cluster.up(say, lambda: self.asked)
        except BaseException:
            cluster.down()
            raise
        attempt.bad = {node: "Ray did not come up there" for node in missing}
        os.environ["RAY_ADDRESS"] = cluster.address
        os.environ["WINDTUNNEL_RAY_NODES"] = str(len(self.given.nodes))
        return cluster

    def _check_nodes(self, attempt: Attempt) -> None:
        """Let every node report, print the table, and keep which are bad.

        Raises:
            UserError: all nodes lack the same for a common reason.
        """
        folder = self.job.path / "nodes" / str(len(self._state.attempts))
        folder.mkdir(parents=True, exist_ok=True)
        step = [
            *scheduler.srun(self.given.nodes),
            *self.job.spec.python,
            "-m",
            "windtunnel.cluster.probe",
            str(self.job.path),
            str(folder),
        ]
        with serve_clock(folder), open(folder / "srun.log", "wb") as log:
            child = subprocess.Popen(step, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            for passed, telling in ticks(PROBE_SECONDS):
                if child.poll() is not None or self.asked is not None:
                    break
                if telling:
                    who = waited_for(self.given.nodes, read_reports(folder))
                    say(f"waiting for {who}; {passed:.0f} of {PROBE_SECONDS:.0f} s")
            end_process(child, END_SECONDS)
        if self.asked is not None:
            return
        verdicts = judge(self.job.spec, self.given.nodes, read_reports(folder))
        for line in table(verdicts):
            say(line)
        common = everywhere(verdicts)
        if common is not None:
            raise UserError(f"on {'all nodes' if len(verdicts) > 1 else verdicts[0].node}: {common}", f"see {folder}")
        attempt.bad = {verdict.node: verdict.why for verdict in verdicts if verdict.problems}

    def _train(self, attempt: Attempt) -> None:
        """Run `windtunnel train` until it ends."""
        command = [*self.job.spec.python, "-m", "windtunnel", "train", *self._what()]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=self.job.spec.workdir)
        try:
            self.wait_for(child)
        finally:
            end_process(child, 0 if self._late else END_SECONDS)
            attempt.code = child.returncode
        runs = self.job.runs()
        if runs:
            attempt.status, attempt.reason = runs[0].status, runs[0].reason

    def _what(self) -> list[str]:
        """Return the arguments of `windtunnel train`: the recipe at first, later the newest run of this job."""
        spec, runs = self.job.spec, self.job.runs()
        what = ["--resume", "--run", str(runs[0].path)] if runs else [str(self.job.path / RECIPE)]
        return [*what, "--root", spec.root, "--yes", *spec.arguments]

    def wait_for(self, child: subprocess.Popen[bytes]) -> None:
        """Wait for a process, handing on what asks this attempt to end."""
        while child.poll() is None and not self._late:
            self._hand_on(child)
            time.sleep(TICK)

    def _hand_on(self, child: subprocess.Popen[bytes]) -> None:
        """Tell a process to save and end, once: the run in words who asked, where somebody did; then, or else, by signal."""
        by, now = self.job.stop, time.monotonic()
        if self._told is None and by is not None:
            self._told = now + WORDS_SECONDS
            for run in self.job.runs()[:1]:
                with contextlib.suppress(OSError):
                    write_atomic(run.path / STOP_FILE, by + "\n")
        elif self._told is None and self._signal is not None:
            self._told = now
        # Once is enough, and a process that is ending need not be told again.
        if self._told is not None and now >= self._told and not self._signalled:
            self._signalled = True
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(signal.SIGUSR1)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def take(number: int, frame: FrameType | None) -> None:
            self._signal = self._signal or signal.Signals(number).name
            if number == signal.SIGTERM:
                self._cancelled = self._cancelled or time.monotonic()

        old = {number: signal.signal(number, take) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def _clean(self) -> None:
        """Remove this job's temporary folder, which the script made here and the steps on the other nodes.

        Where the job is cancelled Slurm starts no more steps: those that run remove it then; see `ray_node`.
        """
        place = os.environ.get("TMPDIR", "")
        if not place or Path(place).name != f"{TEMPORARY}{self.given.id}":
            return
        # Here first: the step on the other nodes may have to wait, and Slurm kills a cancelled job after a while.
        shutil.rmtree(place, ignore_errors=True)
        others = self.given.nodes[1:]
        if others and self._cancelled is None:
            step = [*scheduler.srun(others), "rm", "-rf", "--", place]
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(step, stdin=subprocess.DEVNULL, capture_output=True, timeout=CLEAN_SECONDS, check=False)
        shutil.rmtree(place, ignore_errors=True)

    def _end(self, attempt: Attempt) -> int:
        """Decide what follows, and do it; returns the exit code."""
        attempt.ended, attempt.signal, attempt.after = time.time(), self._signal, self.job.progress()
        # Code 3 is what training ends with when it was asked to and has saved; here it had not begun.
        if attempt.code is None and self._signal is not None:
            attempt.code = 3  # nothing was begun that could be saved
        move = next_move(self._state.attempts, self.job.stop)
        # Kept over attempts: a broken GPU seldom mends itself, and the scheduler hands out the same node again.
        self._state.excluded = sorted({*self._state.excluded, *attempt.bad})
        if move.kind != "again":
            self._state.end = (move.kind, move.why)
        self.job.save(self._state)
        say(f"{move.kind}: {move.why}")
        if move.kind == "again":
            return self._again(attempt)
        return 2 if attempt.code == 2 else _CODES[move.kind]

    def _again(self, attempt: Attempt) -> int:
        """Put the job back into the queue; returns the exit code."""
        if not self.given.batch:
            self._state.end = ("stopped", f"the allocation {self.given.id} ends")
            self.job.save(self._state)
            say(f"go on within another allocation, or: sbatch {self.job.path / SCRIPT}")
            return 3
        # scancel, preemption and a shutdown all send SIGTERM: only Slurm's own state of the job tells them apart, and to
        # requeue a cancelled job would bring back what somebody has just ended.
        if attempt.signal == "SIGTERM":
            standing = scheduler.standings([self.given.id]).get(self.given.id)
            if standing is not None and standing.state != "RUNNING":
                cancelled = standing.state == "CANCELLED"
                self._state.end = ("stopped", "cancelled with scancel") if cancelled else None
                self.job.save(self._state)
                return 3  # what Slurm does with the job is decided already
        if attempt.bad and not self._enough_left():
            return 1
        refused = scheduler.requeue(self.given.id)
        if refused is None:
            say("requeued")
            if self._state.excluded:
                self._exclude()
            return 0
        # Some clusters forbid requeue (JobRequeue=0): another job then waits for the end of this one.
        say(f"requeue: {refused}; a job that follows this one is submitted")
        options = [f"--dependency=afterany:{self.given.id}"]
        options += [f"--exclude={','.join(self._state.excluded)}"] if self._state.excluded else []
        self._state.successor = scheduler.submit(self.job.path / SCRIPT, *options)
        self.job.save(self._state)
        return 0

    def _enough_left(self) -> bool:
        """Whether the partition has nodes for another attempt; otherwise the chain ends."""
        left = set(scheduler.nodes_of(os.environ.get("SLURM_JOB_PARTITION", ""))) - set(self._state.excluded)
        if not left or len(left) >= self.job.spec.nodes:  # none: Slurm does not tell
            return True
        bad = "; ".join(f"{node}: {why}" for node, why in self._state.attempts[-1].bad.items())
        self._state.end = ("failed", f"{len(left)} nodes are left where {self.job.spec.nodes} are needed; {bad}")
        self.job.save(self._state)
        say(": ".join(self._state.end))
        return False

    def _exclude(self) -> None:
        """Keep bad nodes from the next attempt: Slurm takes this as soon as the job waits, while this process may still run."""
        given = _given_excludes(self.job.path / SCRIPT)
        refused = scheduler.exclude(self.given.id, sorted({*given, *self._state.excluded}))
        if refused is not None:
            say(f"warn: Slurm does not exclude {', '.join(self._state.excluded)}: {refused}")


def say(text: str) -> None:
    """Print a line of the job's own."""
    # The log's disk may be full, and standard output closed; the job goes on.
    with contextlib.suppress(OSError, ValueError):
        print(f"[job] {text}", flush=True)


def _given_excludes(script: Path) -> Sequence[str]:
    from .batch_script import read_batch_script

    text = read_batch_script(script).options.get("exclude")
    return scheduler.host_names(text) if text else ()


def main() -> int:
    """Run the job whose folder the command line names."""
    try:
        return run_job(Path(sys.argv[1]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
