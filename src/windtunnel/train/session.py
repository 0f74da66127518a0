"""One session of a run: from a run folder to a trained, or safely stopped, model."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from windtunnel.model import recipe_shape
from windtunnel.recipe import PRESETS, Recipe, UserError
from windtunnel.run import (
    STARTED,
    BandWatch,
    BudgetClock,
    BudgetSpent,
    Checkpoint,
    CheckpointStore,
    CheckpointWriter,
    Metrics,
    RecursionLimits,
    RunFolder,
    StopRequest,
    Targets,
    load_spent,
    settings_of,
)

from .job import Job, Layout
from .loop import AfterStep, Ending, Loop
from .ranks import Ranks, join_ranks
from .supervisor import Supervisor, View


class Silent:
    """A view that shows nothing."""

    def update(self, snapshot: Any) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""


def train(folder: Path, *, view: View | None = None, after_step: AfterStep | None = None, run: RunFolder | None = None) -> int:
    """Train the run in `folder` from its newest good checkpoint, or from the start, until its budget ends.

    Called once on every rank. Rank 0 holds the folder's lock.

    Args:
        run: the folder, already opened for writing by the caller; None: opened here.
        after_step: for tests: called on every rank after each step.

    Returns:
        exit code: 0 finished (or stopped early as overfit), 1 given up after going back too often,
        3 stopped by the budget or a signal with a checkpoint.

    Raises:
        UserError: data, folder or budget cannot be used.
    """
    first = int(os.environ.get("RANK", "0")) == 0
    with contextlib.ExitStack() as stack:
        if run is None:
            run = RunFolder.open(folder, write=first)
            stack.callback(run.close)
        layout = Layout.of_plan(run.manifest["plan"]["layout"])
        ranks = stack.enter_context(join_ranks(layout.device))
        if ranks.first:
            return _first(run, layout, ranks, view or Silent(), after_step)
        _other(run, layout, ranks, after_step)
        return 0


def _other(run: RunFolder, layout: Layout, ranks: Ranks, after_step: AfterStep | None) -> None:
    # Signals reach every process of the job; rank 0 decides what becomes of them.
    with StopRequest(notice=""), _job(run, layout, ranks) as job:
        writer = CheckpointWriter(CheckpointStore(run.checkpoints_dir), ranks.rank, ranks.world)
        step = ranks.share(None)
        if step:
            job.load(writer.store.at(step))
        Loop(job, writer, None, step=step, after_step=after_step).run()


def _first(run: RunFolder, layout: Layout, ranks: Ranks, view: View, after_step: AfterStep | None) -> int:
    recipe = run.recipe
    store = CheckpointStore(run.checkpoints_dir)
    with StopRequest() as stop, contextlib.ExitStack() as stack:
        checkpoint = store.newest_good(with_optimizer=True)
        step = checkpoint.step if checkpoint else 0
        metrics = stack.enter_context(Metrics(run.metrics_path, run.tensorboard_dir, resume_step=step))
        clock = _clock(run, layout, checkpoint)
        _tell_damage(run, store.problems, checkpoint, metrics, view)
        try:
            clock.require_left(step)
        except BudgetSpent as spent:
            run.leave(spent.message)
            raise
        run.manifest.pop("resumed_from", None)  # from here on it is trained
        job = stack.enter_context(_job(run, layout, ranks))
        job.data.tokenizer.save(run.tokenizer_path)
        run.update(data={"checksum": job.data.checksum, "train_tokens": job.data.train.count, "skipped": job.data.skipped})

        def record(kind: str, step: int, message: str, level: str) -> None:
            metrics.event(kind, step, message, "bad" if level == "bad" else "info")

        def flush() -> None:
            # A checkpoint must not be ahead of the metrics: the steps it covers are not run again.
            with contextlib.suppress(UserError):
                metrics.flush()

        writer = CheckpointWriter(store, ranks.rank, ranks.world, policy=recipe.checkpoints, on_event=record, before_commit=flush)
        plan, gpu = run.manifest["plan"], run.manifest["rig"].get("gpu")
        peak = gpu["bf16_tflops"] * 1e12 * layout.ranks if gpu else (run.manifest["rig"].get("cpu_gflops") or 0) * 1e9 or None
        recursion = _recursion(recipe, job.data.tokenizer.vocab)
        speed = plan["tokens_per_second"] if layout.device == "cuda" else None
        targets = Targets(speed, recipe.budget.dollars, recursion, settings_of(recipe))
        bands = BandWatch(recipe.bands, targets, first_step=step)
        flops = recipe_shape(recipe, job.data.tokenizer.vocab).flops_per_token
        supervisor = Supervisor(
            run=run, recipe=recipe, job=job, metrics=metrics, clock=clock, bands=bands, stop=stop, writer=writer, view=view,
            flops_per_token=flops, peak_flops=peak,
        )  # fmt: skip
        ranks.share(step)
        if checkpoint is not None:
            job.load(checkpoint)
            supervisor.load_state(checkpoint.state, step)
            supervisor.event("resumed", f"resumed from step {step:,}")
        supervisor.phase("compiling" if layout.compile else "training")
        try:
            ending = Loop(job, writer, supervisor, step=step, after_step=after_step).run()
        finally:
            supervisor.close()
        _record(run, supervisor, ending, view)
        return ending.exit_code


def _tell_damage(run: RunFolder, problems: list[str], checkpoint: Checkpoint | None, metrics: Metrics, view: View) -> None:
    """Say which checkpoints were passed over, and when none is left of what was trained before."""
    instead = "an older one is used" if checkpoint else "no good one is left"
    for problem in problems:
        metrics.event("checkpoint_damaged", None, problem, "warn", {"advice": instead})
        view.say(f"warn: {problem}; {instead}")
    if checkpoint is None and (problems or run.spent_path.exists()):
        lost = "there is no checkpoint to go on from: training starts at step 0 again"
        metrics.event("no_checkpoint", 0, lost, "warn")
        view.say(f"warn: {lost}")


@contextlib.contextmanager
def _job(run: RunFolder, layout: Layout, ranks: Ranks) -> Iterator[Job]:
    job = Job(run.recipe, layout, ranks)
    try:
        yield job
    finally:
        job.close()


def _clock(run: RunFolder, layout: Layout, checkpoint: Checkpoint | None) -> BudgetClock:
    plan = run.manifest["plan"]
    started = float(os.environ.get(STARTED, time.time()))
    return BudgetClock(
        run.recipe.budget,
        dollars_per_hour=run.manifest["rig"]["dollars_per_hour"],
        batch_tokens=layout.batch_tokens,
        epoch_tokens=run.manifest["data"]["train_tokens"],
        default_tokens=int(plan["derived_tokens"]),
        spent=load_spent(run.spent_path, checkpoint.state["budget"] if checkpoint else None),
        elapsed=max(0.0, time.time() - started),
        phase=run.recipe.phase,
    )


def _recursion(recipe: Recipe, vocab: int) -> RecursionLimits | None:
    if recipe.trm is None:
        return None
    promised = PRESETS[recipe.trm.preset].refinement
    return RecursionLimits(vocab, promised[0] if promised else None)


def _record(run: RunFolder, supervisor: Supervisor, ending: Ending, view: View) -> None:
    status = {0: "done", 1: "failed", 3: "stopped"}[ending.exit_code]
    best = supervisor.writer.store.best()
    summary = {"step": ending.step, "best_step": best.step if best else None, "best_loss": best.validation_loss if best else None}
    try:
        run.update(summary=summary, exit_code=ending.exit_code)
        run.finish(status, ending.reason)  # type: ignore[arg-type]
    except OSError as error:
        raise UserError(f"run folder {run.path} cannot be written: {error}") from None
    supervisor.event("end", ending.reason)
    supervisor.phase("finished" if ending.exit_code == 0 else status)
    line = f"{status} after {ending.step:,} steps: {ending.reason}"
    if best is not None and best.validation_loss is not None:
        line += f"\nbest checkpoint: step {best.step:,}, validation loss {best.validation_loss:.4f}"
    view.say(line)
