"""Train the scale model as `windtunnel train` does, kill it while it writes a checkpoint, resume it, and compare."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from pathlib import Path

from windtunnel.check import CheckFailed, Evidence, Say
from windtunnel.recipe import dump_recipe

from .checks import EXACT
from .context import Context, Rehearsal, Stage, trains_here, trains_real_model
from .following import Follower, Uninterrupted, await_run, series, stop_at, train_command
from .processes import Child

# A small checkpoint is written within milliseconds.
POLL_SECONDS = 0.0005
_COMPLETE = re.compile(r"step-\d+")
# Not the folder of one that is being deleted, which is renamed likewise.
_WRITING = re.compile(r"step-(\d+)\.tmp-(?!delete).*")


def kill(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Start a run; once it has a checkpoint, SIGKILL it while it writes the next."""
    rehearsal.recipe_file.write_text(dump_recipe(rehearsal.scale), encoding="utf-8")
    root = rehearsal.folder / "killed"
    command, log = train_command(rehearsal.recipe_file, root=root), rehearsal.folder / "killed.log"
    with Child(command, log, rehearsal.environment, rehearsal.forker) as child:
        follow = Follower(rehearsal, child, say)
        run = await_run(child, root, follow)
        rehearsal.run = run
        caught = _catch(child, run / "checkpoints", follow)
    left = sorted(path.name for path in (run / "checkpoints").iterdir() if not _COMPLETE.fullmatch(path.name))
    if not any(_WRITING.fullmatch(name) for name in left):
        raise CheckFailed(f"the half-written checkpoint is gone after the kill; there is {', '.join(left) or 'nothing'}")
    rehearsal.resumed_from = _newest_good(run)
    text = f"SIGKILL inside {caught}; step {rehearsal.resumed_from} before it is whole"
    return Evidence(text, {"found": caught, "good_step": rehearsal.resumed_from})


def resume(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Go on with the killed run to its end."""
    from windtunnel.checkpoint import CheckpointStore
    from windtunnel.run import MetricsReader, RunFolder

    assert rehearsal.run is not None
    command = train_command(rehearsal.recipe_file, run=rehearsal.run)
    with contextlib.ExitStack() as stack:
        # Where there are cores for both, the two runs that are compared are waited for once.
        beside = stack.enter_context(Uninterrupted(rehearsal, lambda text: None)) if rehearsal.side_by_side else None
        log = rehearsal.folder / "resumed.log"
        child = stack.enter_context(Child(command, log, rehearsal.environment, rehearsal.forker))
        follow = Follower(rehearsal, child, say)

        def look() -> None:
            follow.look()
            if beside is not None:
                beside.look()

        code = child.wait(look)
        words = child.last_words()
        if beside is not None:
            say("waiting for the run that was not killed")
            beside.finish()
            rehearsal.uninterrupted = beside.ended
    if code != 0:
        raise CheckFailed(f"`windtunnel train --resume` ended with exit code {code}: {words}")
    folder = RunFolder.open(rehearsal.run)
    with MetricsReader(folder.metrics_path) as metrics:
        resumed = [event.message for event in metrics.events("resumed")]
        steps = [point.step for point in metrics.series("loss")]
    expected = f"resumed from step {rehearsal.resumed_from:,}"
    if resumed != [expected]:
        raise CheckFailed(f"expected one event '{expected}', found {resumed or 'none'}")
    # No step twice and none left out: a resumed run must not log again what was logged before the kill.
    if steps != list(range(1, len(steps) + 1)):
        raise CheckFailed(f"the metrics have {len(steps)} points up to step {steps[-1] if steps else 0}")
    stale = [path.name for path in folder.checkpoints_dir.iterdir() if not _COMPLETE.fullmatch(path.name.partition(".")[0])]
    stale += [path.name for path in folder.checkpoints_dir.glob("*.tmp-*")]
    if stale:
        raise CheckFailed(f"half-written checkpoints were left behind: {', '.join(stale)}", blocks=False)
    store = CheckpointStore(folder.checkpoints_dir)
    # All of them, not the newest alone: the kill may have damaged one that is not read again until it is needed.
    bad = [c.path.name for c in store.all() if not store.is_good(c)]
    if bad or store.problems:
        raise CheckFailed(f"damaged checkpoints: {', '.join(bad) or store.problems[0]}", blocks=False)
    kept = ", ".join(str(c.step) for c in store.all())
    text = f"went on at step {rehearsal.resumed_from} to {steps[-1]}: {folder.manifest['reason']}; checkpoints kept: {kept}"
    return Evidence(text, {"resumed_from": rehearsal.resumed_from, "steps": steps[-1], "reason": folder.manifest["reason"]})


def _catch(child: Child, checkpoints: Path, follow: Follower) -> str:
    """Kill the process while a checkpoint is half written and one before it is whole; return what was on disk then.

    It is frozen first: what is seen on the disk is then what the kill leaves.
    """
    tries, looked = 0, 0.0
    while child.running:
        writing = _half_written(checkpoints)
        if writing is not None:
            child.freeze()
            tries += 1
            # Between the look and the freeze the save may have ended, and the folder have got its name.
            if writing.exists():
                found = _listing(writing)
                child.kill()
                return found
            child.thaw()
        # Reading the log at every poll would miss the save.
        if time.monotonic() - looked > 0.1:
            looked = time.monotonic()
            follow.look()
        time.sleep(POLL_SECONDS)
    code = child.process.returncode
    if code:
        raise CheckFailed(f"`windtunnel train` ended by itself with exit code {code}: {child.last_words()}")
    raise CheckFailed(f"no save could be caught half written before the run was over ({tries} tries)", "rehearse again")


def _half_written(checkpoints: Path) -> Path | None:
    try:
        paths = list(checkpoints.iterdir())
    except FileNotFoundError:
        return None
    if not any(_COMPLETE.fullmatch(path.name) for path in paths):
        return None
    for path in paths:
        if _WRITING.fullmatch(path.name) and _bytes(path):
            return path
    return None


def _bytes(folder: Path) -> int:
    try:
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    except FileNotFoundError:  # it got its name meanwhile
        return 0


def _listing(folder: Path) -> str:
    """Return what a folder holds, such as 'step-00000060.tmp-... (model/__0_0.distcp 0.60 MiB, no checkpoint.json)'."""
    parts = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        parts.append(f"{path.relative_to(folder)} {path.stat().st_size / 2**20:.2f} MiB")
    if not (folder / "checkpoint.json").exists():
        parts.append("no checkpoint.json")
    # The random end of the name tells nothing and takes half a line.
    name = re.sub(r"(\.tmp-.{4}).*", r"\1…", folder.name)
    return f"{name} ({', '.join(parts)})"


def _newest_good(run: Path) -> int:
    from windtunnel.checkpoint import CheckpointStore

    store = CheckpointStore(run / "checkpoints")
    newest = store.newest_good(with_optimizer=True)
    if newest is None:
        raise CheckFailed(f"no checkpoint is good after the kill: {'; '.join(store.problems) or 'none is there'}")
    return newest.step


DRAWN = ("reward", "answer_length", "entropy")
"""Of a policy, whose answers are drawn."""
RANKS = 2
RANK_STEPS = 6
RANK_TOLERANCE = 2e-3
"""Relative: sums over ranks are taken in another order, and Muon iterates on what comes of it."""
APART = 1e-2
"""Most nats by which a policy's sampler and learner, both in fp32, may be apart on a token."""
STOPPED = 3


def bit_exact(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Train the same recipe without a kill beyond the step where the other resumed, stop it by SIGTERM, compare.

    Where there are cores for both it has been trained beside the one that resumed.
    """
    ended = rehearsal.uninterrupted
    if ended is None:
        with Uninterrupted(rehearsal, say) as other:
            ended = other.finish()
    code, run = ended.code, ended.run
    if run is None:
        raise CheckFailed(f"`windtunnel train` ended before training with exit code {code}: {ended.words}")
    rehearsal.reference = run
    # 0: it had ended by itself, just before it was asked.
    if code not in (0, STOPPED):
        raise CheckFailed(f"SIGTERM should save and exit {STOPPED}; the exit code is {code}: {ended.words}")
    assert rehearsal.run is not None
    compared, last = 0, 0
    drawn = rehearsal.scale.rl is not None
    for name in (*EXACT, *(DRAWN if drawn else ())):
        ours, theirs = series(rehearsal.run, name), series(run, name)
        common = sorted(ours.keys() & theirs.keys())
        if not common or common[-1] <= rehearsal.resumed_from:
            raise CheckFailed(f"the runs have no steps in common after step {rehearsal.resumed_from}", blocks=False)
        for step in common:
            # Bit by bit: a tolerance would hide exactly the bugs that this is for, such as a lost generator state.
            if ours[step] != theirs[step]:
                message = f"{name} differs at step {step}: {ours[step]!r} resumed, {theirs[step]!r} uninterrupted"
                raise CheckFailed(f"{message} (resumed from {rehearsal.resumed_from})", blocks=False)
        compared, last = compared + len(common), common[-1]
    _same_answers(rehearsal.run, run, last)
    text = (
        f"{compared} values of {'reward, answer length, ' if drawn else ''}loss, gradient norm and learning rate up to step "
        f"{last} are identical, "
        f"{last - rehearsal.resumed_from} steps beyond the resumed one; SIGTERM saved and exited {code}"
    )
    return Evidence(text, {"compared": compared, "differences": 0, "last_step": last, "sigterm_exit_code": code})


def _same_answers(ours: Path, theirs: Path, last: int) -> None:
    """Compare the answers that a policy drew, of the rounds that both runs keep. Raises CheckFailed."""
    for path in sorted((theirs / "rollouts").glob("round-*.jsonl")):
        other = ours / "rollouts" / path.name
        if int(path.stem.partition("-")[2]) <= last and other.exists() and other.read_bytes() != path.read_bytes():
            raise CheckFailed(f"the answers of {path.name} differ between the resumed and the uninterrupted run", blocks=False)


def ranks(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Go on with a copy of the reference run on another number of ranks; its losses are those of the other run.

    A policy's ranks draw answers of their own: there sampler and learner have to agree.
    """
    if rehearsal.here.gpus == 1:
        return Evidence("one GPU here: ranks that share work were not tried", absent="rehearse on a rig of several GPUs")
    assert rehearsal.reference is not None
    assert rehearsal.run is not None
    run = rehearsal.folder / "ranks" / rehearsal.reference.name
    # A copy: the reference is still compared with.
    shutil.copytree(rehearsal.reference, run)
    start = _take_back(run, rehearsal.scale.budget.steps)
    command, before, now = _on_other_ranks(rehearsal, run)
    with Child(command, rehearsal.folder / "ranks.log", {"OMP_NUM_THREADS": "1"} if now > 1 else rehearsal.environment) as child:
        follow = Follower(rehearsal, child, say)
        code = stop_at(child, run, start + min(RANK_STEPS, rehearsal.steps_beyond), follow.look)
        words = child.last_words()
    ours, theirs = series(rehearsal.run, "loss"), series(run, "loss")
    common = [step for step in sorted(ours.keys() & theirs.keys()) if step > start]
    if not common:
        raise CheckFailed(f"no step was taken on {now} ranks; exit code {code}: {words}")
    text = f"a checkpoint of {before} rank{'s' if before > 1 else ''} went on with {now}: "
    if rehearsal.scale.rl is not None:
        return _agreeing_ranks(run, common, text, [before, now])
    worst = max(abs(ours[step] / theirs[step] - 1) for step in common)
    text += f"the losses of steps {common[0]} to {common[-1]} " + (f"differ by {worst:.1e} at most" if worst else "are identical")
    if worst > RANK_TOLERANCE:
        raise CheckFailed(f"{text}; {RANK_TOLERANCE:g} is allowed for another order of sums")
    return Evidence(text, {"ranks": [before, now], "steps": len(common), "largest_relative_difference": worst})


def _take_back(run: Path, total: int | None) -> int:
    """Return the step that a copied run goes on from: of one that had ended before it was stopped, an earlier checkpoint's."""
    from windtunnel.checkpoint import CheckpointStore

    last = max(series(run, "loss"))
    if total is None or last < total:
        return last
    saved = CheckpointStore(run / "checkpoints").all()
    for checkpoint in saved:
        if checkpoint.step >= total:
            shutil.rmtree(checkpoint.path)
    return max((checkpoint.step for checkpoint in saved if checkpoint.step < total), default=0)


def _agreeing_ranks(run: Path, steps: list[int], text: str, ranks: list[int]) -> Evidence:
    """Judge by how far sampler and learner are apart. Raises CheckFailed."""
    apart = series(run, "mismatch_largest")
    worst = max(apart[step] for step in steps)
    text += f"in rounds {steps[0]} to {steps[-1]} sampler and learner are at most {worst:.0e} nats apart on a token"
    if not worst <= APART:
        raise CheckFailed(f"{text}; {APART:g} is allowed")
    return Evidence(text, {"ranks": ranks, "steps": len(steps), "largest_mismatch": worst})


def _on_other_ranks(rehearsal: Rehearsal, run: Path) -> tuple[list[str], int, int]:
    """Return (command, ranks before, ranks now): two processes where there was one CPU, one GPU where there were several."""
    from windtunnel.run import RunFolder

    if rehearsal.here.gpus > 1:
        before = RunFolder.open(run).manifest["plan"]["layout"]["ranks"]
        return [*train_command(rehearsal.recipe_file, run=run), "--gpus", "1"], before, 1
    with RunFolder.open(run, write=True) as folder:
        plan = folder.manifest["plan"]
        layout = plan["layout"]
        micro = layout["micro_batch"]
        # The tokens of a step must stay as they are: half as many micro-batches a rank, or, of an odd number, half as large ones.
        if layout["accumulation"] % RANKS == 0:
            accumulation = layout["accumulation"] // RANKS
        else:
            micro, accumulation = max(1, micro // RANKS), layout["accumulation"]
        folder.update(plan=plan | {"layout": layout | {"ranks": RANKS, "micro_batch": micro, "accumulation": accumulation}})
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    return [*torchrun, "-m", "windtunnel.launch.worker", str(run), "--json"], 1, RANKS


def _spreads(context: Context) -> bool:
    """Return whether the scale model is small enough for two processes at a time; else the check of random ones stands for it."""
    return trains_here(context) and not trains_real_model(context)


CHECKS = (
    Stage(
        "kill",
        "SIGKILL inside a checkpoint costs only the steps since the one before",
        "read killed.log in the rehearsal's folder; runs need a local or POSIX-conforming file system",
        kill,
        shows="first interruption",
        needs=("recipe", "rig", "torch", "disk", "data", "model"),
    ),
    Stage(
        "resume",
        "the same command goes on from the last whole checkpoint",
        "read resumed.log in the rehearsal's folder",
        resume,
        shows="first interruption",
        needs=("kill",),
    ),
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
        applies=_spreads,
    ),
)
