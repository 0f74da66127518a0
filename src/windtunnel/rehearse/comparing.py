"""The killed and resumed run against one that was left alone, and against one on another number of ranks."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from windtunnel.check import CheckFailed, Evidence, Say

from .processes import TICK, Child
from .state import Rehearsal, Stage
from .training import Follower, await_run, train_command

EXACT = ("loss", "gradient_norm", "learning_rate")
STEPS_BEYOND = 12
"""Steps past the resumed checkpoint that both runs take."""
RANKS = 2
RANK_STEPS = 6
RANK_TOLERANCE = 2e-3
"""Relative: sums over ranks are taken in another order, and Muon iterates on what comes of it."""
STOPPED = 3


def bit_exact(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Train the same recipe without a kill beyond the step where the other resumed, stop it by SIGTERM, compare."""
    root = rehearsal.folder / "reference"
    goal = rehearsal.resumed_from + STEPS_BEYOND
    with Child(
        train_command(rehearsal.recipe_file, root=root), rehearsal.folder / "reference.log", rehearsal.environment
    ) as child:
        follow = Follower(rehearsal, child, say)
        run = await_run(child, root, follow)
        rehearsal.reference = run
        code = _stop_at(child, run, goal, follow.look)
        words = child.last_words()
    if code not in (0, STOPPED):
        raise CheckFailed(f"SIGTERM should save and exit {STOPPED}; the exit code is {code}: {words}")
    assert rehearsal.run is not None
    compared, last = 0, 0
    for name in EXACT:
        ours, theirs = _series(rehearsal.run, name), _series(run, name)
        common = sorted(ours.keys() & theirs.keys())
        if not common or common[-1] <= rehearsal.resumed_from:
            raise CheckFailed(f"the runs have no steps in common after step {rehearsal.resumed_from}", blocks=False)
        for step in common:
            if ours[step] != theirs[step]:
                message = f"{name} differs at step {step}: {ours[step]!r} resumed, {theirs[step]!r} uninterrupted"
                raise CheckFailed(f"{message} (resumed from {rehearsal.resumed_from})", blocks=False)
        compared, last = compared + len(common), common[-1]
    text = (
        f"{compared} values of loss, gradient norm and learning rate up to step {last} are identical, "
        f"{last - rehearsal.resumed_from} steps beyond the resumed one; SIGTERM saved and exited {code}"
    )
    return Evidence(text, {"compared": compared, "differences": 0, "last_step": last, "sigterm_exit_code": code})


def ranks(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Go on with a copy of the reference run on another number of ranks; its losses are those of the other run."""
    if rehearsal.here.gpus == 1:
        return Evidence("one GPU here: ranks that share work were not tried", absent="rehearse on a rig of several GPUs")
    assert rehearsal.reference is not None
    assert rehearsal.run is not None
    run = rehearsal.folder / "ranks" / rehearsal.reference.name
    shutil.copytree(rehearsal.reference, run)
    start = max(_series(run, "loss"))
    command, before, now = _on_other_ranks(rehearsal, run)
    with Child(command, rehearsal.folder / "ranks.log", {"OMP_NUM_THREADS": "1"} if now > 1 else rehearsal.environment) as child:
        follow = Follower(rehearsal, child, say)
        code = _stop_at(child, run, start + RANK_STEPS, follow.look)
        words = child.last_words()
    ours, theirs = _series(rehearsal.run, "loss"), _series(run, "loss")
    common = [step for step in sorted(ours.keys() & theirs.keys()) if step > start]
    if not common:
        raise CheckFailed(f"no step was taken on {now} ranks; exit code {code}: {words}")
    worst = max(abs(ours[step] / theirs[step] - 1) for step in common)
    text = (
        f"a checkpoint of {before} rank{'s' if before > 1 else ''} went on with {now}: the losses of steps {common[0]} to "
        f"{common[-1]} " + (f"differ by {worst:.1e} at most" if worst else "are identical")
    )
    if worst > RANK_TOLERANCE:
        raise CheckFailed(f"{text}; {RANK_TOLERANCE:g} is allowed for another order of sums")
    return Evidence(text, {"ranks": [before, now], "steps": len(common), "largest_relative_difference": worst})


def _on_other_ranks(rehearsal: Rehearsal, run: Path) -> tuple[list[str], int, int]:
    """(command, ranks before, ranks now): two processes where there was one CPU, one GPU where there were several."""
    from windtunnel.run import RunFolder

    if rehearsal.here.gpus > 1:
        before = RunFolder.open(run).manifest["plan"]["layout"]["ranks"]
        return [*train_command(rehearsal.recipe_file, run=run), "--gpus", "1"], before, 1
    with RunFolder.open(run, write=True) as folder:
        plan = folder.manifest["plan"]
        layout = plan["layout"]
        micro = layout["micro_batch"]
        if layout["accumulation"] % RANKS == 0:
            accumulation = layout["accumulation"] // RANKS
        else:
            micro, accumulation = max(1, micro // RANKS), layout["accumulation"]
        folder.update(plan=plan | {"layout": layout | {"ranks": RANKS, "micro_batch": micro, "accumulation": accumulation}})
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    return [*torchrun, "-m", "windtunnel.launch.worker", str(run), "--json"], 1, RANKS


def _stop_at(child: Child, run: Path, step: int, each: Callable[[], None]) -> int:
    """Ask the run to stop once it has logged `step`; its exit code."""
    from windtunnel.run import holder

    asked = False
    while child.running:
        each()
        if not asked and max(_series(run, "loss", wait=True), default=0) >= step:
            asked = True
            by = holder(run)  # rank 0
            os.kill(by.pid if by else child.process.pid, signal.SIGTERM)
        time.sleep(TICK)
    each()
    return child.process.wait()


def _series(run: Path, name: str, *, wait: bool = False) -> dict[int, float]:
    return dict(_points(run, name, wait))


def _points(run: Path, name: str, wait: bool) -> Iterator[tuple[int, float]]:
    from windtunnel.recipe import UserError
    from windtunnel.run import MetricsReader

    try:
        with MetricsReader(run / "metrics.sqlite") as metrics:
            yield from ((point.step, point.value) for point in metrics.series(name))
    except UserError:
        if not wait:  # a run that has just begun has no metrics yet
            raise


CHECKS = (
    Stage(
        "bit-exact",
        "a run that was killed and resumed is the run that was not, to the last bit",
        "something outside the package decides results: look for other software on this GPU or changed files",
        bit_exact,
        shows="first interruption",
        needs=("resume",),
    ),
    Stage(
        "ranks",
        "a checkpoint goes on with another number of ranks, and they compute the same",
        "read ranks.log in the rehearsal's folder; torchrun must be able to open ports on localhost",
        ranks,
        shows="start",
        needs=("bit-exact",),
    ),
)
