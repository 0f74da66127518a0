"""One session of a run: from a run folder to a trained, or safely stopped, model."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from windtunnel.checkpoint import Checkpoint, CheckpointStore, Saver, choose_checkpoint
from windtunnel.data import PreparedData, prepare
from windtunnel.model import describing_files, hf_shape, out_of_memory, recipe_shape
from windtunnel.recipe import ANSWERS_AT_END, Every, HuggingFaceModel, Layout, Recipe, UserError
from windtunnel.run import (
    STARTED,
    BandWatch,
    BudgetClock,
    BudgetSpent,
    Channel,
    Metrics,
    Room,
    RunFolder,
    StopRequest,
    Targets,
    judges_of,
    load_spent,
    wait_for_compilers,
)

from .advice import band_advice, settings_of
from .callbacks import Budget, Callback, Health, ValidateEvery
from .checkpoints import Checkpoints, make_saver
from .engine import Engine
from .failures import OutOfMemory, lighter, lighter_run, may_shard, short_of, tell_lighter
from .loop import AfterStep, Deciders, Ending, Loop
from .methods import Ask, Method, Supervised, Work
from .ranks import Ranks, join_ranks
from .telemetry import Journal, Silent, Telemetry, View

NEVER = Every(steps=2**40)


def train(
    folder: Path, *, view: View | None = None, after_step: AfterStep | None = None, run: RunFolder | None = None,
    method: Method | None = None,
) -> int:  # fmt: skip
    """Train the run in `folder` from its newest good checkpoint, or from the start, until its budget ends.

    Called once on every rank. Rank 0 holds the folder's lock.

    Args:
        folder: of the run, with its manifest.
        view: shows the run while it trains; None: nothing is shown.
        run: the folder, already opened for writing by the caller; None: opened here.
        after_step: for tests: called on every rank after each step.
        method: of the stage; None: `Supervised`.

    Returns:
        exit code: 0 finished (or stopped early as overfit), 1 given up after going back too often,
        3 stopped by the budget or a signal with a checkpoint.

    Raises:
        UserError: data, folder or budget cannot be used.
    """
    # Before the ranks have met: only rank 0 takes the folder's lock, and a folder that is in use is refused without the
    # others.
    first = int(os.environ.get("RANK", "0")) == 0
    with contextlib.ExitStack() as stack:
        if run is None:
            run = RunFolder.open(folder, write=first)
            stack.callback(run.close)
        layout = Layout.of_plan(run.manifest["plan"]["layout"])
        ranks = stack.enter_context(join_ranks(layout.device))
        if ranks.first:
            return _first(run, layout, ranks, method or Supervised(), view or Silent(), after_step)
        _other(run, layout, ranks, method or Supervised(), after_step)
        return 0


def _other(run: RunFolder, layout: Layout, ranks: Ranks, method: Method, after_step: AfterStep | None) -> None:
    # Signals reach every process of the job; rank 0 decides what becomes of them.
    with StopRequest(notice="") as stop, contextlib.ExitStack() as stack:
        engine, _, ask = stack.enter_context(_engine(run, layout, ranks, method, stop))
        saver = make_saver(engine, CheckpointStore(run.checkpoints_dir), ranks)
        checkpoints = Checkpoints(engine, saver, ranks, run.recipe.checkpoints.every, initial=partial(_initial, run))
        # From here to the end this rank makes the same collective calls in the same order as rank 0; see `_first`.
        step = ranks.share(None)  # rank 0 chooses the checkpoint; see `_first`
        checkpoints.go_on_from(step)
        Loop(engine, ranks, checkpoints, step=step or 0, after_step=after_step, lighter=lighter_run(run), ask=ask).run()


def _first(
    run: RunFolder, layout: Layout, ranks: Ranks, method: Method, view: View, after_step: AfterStep | None
) -> int:  # fmt: skip
    recipe = run.recipe
    # Found before the metrics are opened: what was logged after its step is taken back, since those steps are run again.
    store = CheckpointStore(run.checkpoints_dir)
    with StopRequest(folder=run.path) as stop, contextlib.ExitStack() as stack:
        checkpoint = store.newest_good(with_optimizer=True)
        step = checkpoint.step if checkpoint else 0
        metrics = stack.enter_context(Metrics(run.metrics_path, run.tensorboard_dir, resume_step=step))
        # Before a model is built: a run whose budget is spent ends at once.
        clock = _clock(run, layout, checkpoint)
        _tell_damage(run, store.problems, checkpoint, metrics, view)
        try:
            if not (step and run.interrupted):  # otherwise it only has to be told how the run ended
                clock.require_left(step)
        except BudgetSpent as spent:
            run.leave(spent.message)
            raise
        Channel.tell_begun()
        run.manifest.pop("resumed_from", None)  # from here on it is trained
        engine, data, ask = stack.enter_context(_engine(run, layout, ranks, method, stop))
        data.tokenizer.save(run.tokenizer_path)
        if recipe.rl is None:
            facts = {"train_tokens": data.epoch_tokens(layout.sequence), "skipped": data.skipped}
            run.update(data={"checksum": data.checksum, **facts})
        # The order of the callbacks is that of their questions: health may turn a step into a rewind, and then nobody after
        # it asks for a save; telemetry comes last, to write down what the others measured.
        journal = Journal(metrics, view)
        health = Health(_bands(run, layout, data.tokenizer.vocab, step), recipe.bands, by_answers=ask is not None)
        budget = Budget(clock, stop, run.spent_path)
        stage: Any = recipe.training[0]
        validate = ValidateEvery(
            getattr(stage, "validate_every", NEVER), with_saves=recipe.checkpoints.every.seconds is not None,
            answers=None if ask is None else stage.answers.every,
            answer_seconds=run.manifest["plan"]["startup"].get(ANSWERS_AT_END, 0.0),
            # A policy that is made worse must not win for want of a rival. A checkpoint holds what was answered before it.
            before=recipe.rl is not None and checkpoint is None,
        )  # fmt: skip
        callbacks: list[Callback] = [health, validate]
        checkpoints = Checkpoints(
            engine,
            _saver(run, store, engine, ranks, metrics),
            ranks,
            recipe.checkpoints.every,
            facts=lambda: {key: value for callback in callbacks for key, value in callback.state_dict().items()},
            spoiled=health.go_back,
            initial=partial(_initial, run),
        )
        telemetry = _telemetry(run, layout, data.tokenizer.vocab, clock, health.bands)
        callbacks += [checkpoints, budget, telemetry]
        state = checkpoints.go_on_from(ranks.share(None if checkpoint is None else step))
        if state is not None:
            for callback in callbacks:
                callback.load_state_dict(state)
        loop = Loop(
            engine, ranks, checkpoints, callbacks, Deciders(health, budget), journal=journal, step=step, after_step=after_step,
            lighter=tell_lighter(run), ask=ask,
        )  # fmt: skip
        if checkpoint is not None:
            journal.event("resumed", f"resumed from step {step:,}")
        journal.phase("compiling" if layout.compile else "training")
        try:
            ending = loop.run()
        finally:
            loop.close()
        _record(run, store, journal, ending, view)
        return ending.exit_code


def _initial(run: RunFolder) -> Checkpoint | None:
    """Return the checkpoint of another run that this one begins with, as `windtunnel.launch` chose it.

    Raises:
        UserError: it is not there any more, or damaged.
    """
    source = run.manifest.get("init")
    if not source:
        return None
    if not Path(source["run"]).is_dir():
        raise UserError(
            f"{run.path} begins with the weights of {source['run']}, which is not there any more",
            "bring that folder back, or train the recipe from its first stage",
        )
    return choose_checkpoint(Path(source["run"]), int(source["step"]), "to begin with").checkpoint


def _saver(run: RunFolder, store: CheckpointStore, engine: Engine, ranks: Ranks, metrics: Metrics) -> Saver:
    """Return rank 0's saver, which tells the run what it did."""

    def record(kind: str, step: int, message: str, level: str) -> None:
        metrics.event(kind, step, message, "bad" if level == "bad" else "info")

    def flush() -> None:
        # A checkpoint must not be ahead of the metrics: the steps it covers are not run again.
        with contextlib.suppress(UserError):
            metrics.flush()

    if isinstance(run.recipe.model, HuggingFaceModel):
        config = describing_files(run.recipe, engine.feed.new)
    else:
        config = {"shape.json": asdict(recipe_shape(run.recipe, engine.feed.vocab))}
    saver = make_saver(
        engine, store, ranks, policy=run.recipe.checkpoints, config=config, beside=[run.tokenizer_path],
        on_event=record, before_commit=flush,
    )  # fmt: skip
    if store.folder.stat().st_dev == run.path.stat().st_dev:
        metrics.room = Room(saver.wanted)
    return saver


def _bands(run: RunFolder, layout: Layout, vocab: int, step: int) -> BandWatch:
    recipe = run.recipe
    # A CPU's planned speed is a rough guess, and no reason to warn of a slow run.
    speed = run.manifest["plan"]["tokens_per_second"] if layout.device == "cuda" else None
    advice = band_advice(settings_of(recipe))
    targets = Targets(speed, recipe.budget.dollars, judges_of(recipe, vocab), advice, loss_falls=recipe.rl is None)
    return BandWatch(recipe.bands, targets, first_step=step)


def _flops_per_token(recipe: Recipe, layout: Layout, vocab: int) -> float:
    """Return the FLOPs of training on a token, as utilisation is counted."""
    if isinstance(recipe.model, HuggingFaceModel):
        return hf_shape(recipe.model.config).flops_per_token(layout.sequence)
    return recipe_shape(recipe, vocab).flops_per_token


def _telemetry(run: RunFolder, layout: Layout, vocab: int, clock: BudgetClock, bands: BandWatch) -> Telemetry:
    recipe, plan, rig = run.recipe, run.manifest["plan"], run.manifest["rig"]
    gpu, params = rig.get("gpu"), plan["params"]
    named = plan["model"] if plan["depth"] is None else f"d{plan['depth']}"
    size = f"{params / 1e6:,.1f} M" if params >= 1e6 else f"{params / 1e3:,.1f} k"
    return Telemetry(
        f"{recipe.name} {named}, {size} parameters on {rig['name']}",
        gpus=layout.ranks if layout.device == "cuda" else 0,
        flops_per_token=_flops_per_token(recipe, layout, vocab),
        # Without a GPU's data sheet: what a CPU did in a product when the rig was detected, if it was.
        peak_flops=gpu["bf16_tflops"] * 1e12 * layout.ranks if gpu else (rig.get("cpu_gflops") or 0) * 1e9 or None,
        clock=clock,
        bands=bands,
        dollars=recipe.budget.dollars,
    )


def _tell_damage(run: RunFolder, problems: list[str], checkpoint: Checkpoint | None, metrics: Metrics, view: View) -> None:
    """Say which checkpoints were passed over, and when none is left of what was trained before."""
    if metrics.damage:
        view.say(f"warn: {metrics.damage}")
    instead = "an older one is used" if checkpoint else "no good one is left"
    for problem in problems:
        metrics.event("checkpoint_damaged", None, problem, "warn", {"advice": instead})
        view.say(f"warn: {problem}; {instead}")
    if checkpoint is None and (problems or run.spent_path.exists()):
        lost = "there is no checkpoint to go on from: training starts at step 0 again"
        metrics.event("no_checkpoint", 0, lost, "warn")
        view.say(f"warn: {lost}")


@contextlib.contextmanager
def _engine(
    run: RunFolder, layout: Layout, ranks: Ranks, method: Method, stop: StopRequest
) -> Iterator[tuple[Engine, PreparedData, Ask | None]]:
    """Yield the recipe's engine on the recipe's data, and what answers held-out questions.

    Raises:
        UserError: the run was planned for another number of ranks.
        OutOfMemory: the model does not fit.
    """
    recipe = run.recipe
    if ranks.world != layout.ranks:
        raise UserError(
            f"the run is planned for {layout.ranks} ranks and was started with {ranks.world}",
            "start it with: windtunnel train",
        )
    # One rank prepares; the others find it done.
    if not ranks.first:
        ranks.barrier()
    ranks.heartbeat.beat("preparing the data")
    data = prepare(recipe)
    if ranks.first:
        ranks.barrier()
    ranks.heartbeat.beat("building the model")
    work = Work(run, layout, ranks, data, stop)
    try:
        engine = method.engine(work)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        # Smaller micro-batches would not help: no batch has been seen yet. What is told leaves them out.
        built = replace(layout, micro_batch=1, accumulation=1)
        fix = lighter(run.path, built, "", recomputes=False, shards=may_shard(recipe, layout))
        raise OutOfMemory(f"out of memory while the model is built{short_of(error)}", fix) from None
    ranks.heartbeat.beat("waiting for what is compiled")
    # Kernels that other processes compile are waited for, or this one would compile them a second time beside them.
    wait_for_compilers(lambda: stop.requested)
    with contextlib.closing(engine), method.ask(work, engine) as ask:
        yield engine, data, ask


def _clock(run: RunFolder, layout: Layout, checkpoint: Checkpoint | None) -> BudgetClock:
    plan, recipe = run.manifest["plan"], run.recipe
    # A machine costs money from the command's start, not from the first step.
    started = float(os.environ.get(STARTED, time.time()))
    return BudgetClock(
        recipe.budget,
        dollars_per_hour=run.manifest["rig"]["dollars_per_hour"],
        batch_tokens=layout.batch_tokens if recipe.rl is None else int(recipe.rl.round_tokens),
        epoch_tokens=run.manifest["data"]["train_tokens"],
        default_tokens=int(plan["derived_tokens"]),
        spent=load_spent(run.spent_path, checkpoint.state["budget"] if checkpoint else None),
        elapsed=max(0.0, time.time() - started),
        stage=recipe.stage,
    )


class Unrecorded(UserError):
    """Training has ended, and how could not be written into the run's folder."""

    exit_code = 1


def _record(run: RunFolder, store: CheckpointStore, journal: Journal, ending: Ending, view: View) -> None:
    status = {0: "done", 1: "failed", 3: "stopped"}[ending.exit_code]
    best = store.best()
    summary = {"step": ending.step, "best_step": best.step if best else None, "best_loss": best.validation_loss if best else None}
    if best is not None and best.score is not None:
        summary["best_answers"] = best.score
    try:
        # A disk that is full in the end must not make a run look as if it had crashed: it has trained.
        run.update(summary=summary, exit_code=ending.exit_code)
        run.finish(status, ending.reason)  # type: ignore[arg-type]
    except OSError as error:
        raise Unrecorded(
            f"training ended after {ending.step:,} steps ({ending.reason}), but run folder {run.path} cannot be written: "
            f"{error.strerror or error}",
            f"make it writable, or free space on its disk; then windtunnel train --resume --run {shlex.quote(str(run.path))}",
        ) from None
    if best is not None and not best.step and ending.step:
        text = f"no checkpoint answers held-out questions better than what training began with ({best})"
        journal.event("no_gain", text, "warn", {"advice": "serve and export take the weights of step 0; lower learning_rate"})
    journal.event("end", ending.reason)
    journal.phase("finished" if ending.exit_code == 0 else status)
    line = f"{status} after {ending.step:,} steps: {ending.reason}" + (f"\n  fix: {ending.fix}" if ending.fix else "")
    if best is not None and (best.validation_loss is not None or best.score is not None):
        line += f"\nbest checkpoint: {best}"
    view.say(line)
