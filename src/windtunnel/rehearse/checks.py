"""Check checkpoints of the scale model: killed by SIGKILL inside a save, resumed, bit for bit the run that was not killed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.check import Check, CheckFailed, Evidence, Say, one_thread
from windtunnel.recipe import Every, Recipe, dump_recipe

from .context import Context

if TYPE_CHECKING:
    from .context import Rehearsal
    from .processes import Child


STEPS, EVERY = 24, 3
"""Enough saves to be caught in the middle of one."""
EXACT = ("loss", "gradient_norm", "learning_rate")
"""Metrics that a run which was killed has in common with one that was not, to the last bit."""
SAMPLES = 3
TOKENS = 4096


def is_gpt_with_data(context: Context) -> bool:
    """Return whether there is a scale model of a GPT, and data for it."""
    return context.is_gpt and context.has_data


def small_run(context: Context) -> Recipe:
    """Return the scale model for a few dozen steps, a save every few of them, and three samples to be measured by."""
    scale = context.scale
    micro = 2 if scale.supervision else 8
    pretrain = scale.pretrain.model_copy(
        update={
            "validate_every": Every(steps=STEPS // 2),
            "validation_tokens": TOKENS,
            "batch_tokens": 2 * micro * scale.gpt.sequence if scale.supervision else 1024,
            # Half a step: accumulation is a code path of its own.
            "micro_batch": micro,
            "compile": False,  # takes longer than the run
        }
    )
    evaluate = scale.evaluation.model_copy(
        update={"bits_per_byte_tokens": TOKENS, "exact_match_problems": SAMPLES, "samples": SAMPLES, "sample_tokens": 16}
    )
    checkpoints = scale.checkpoints.model_copy(update={"every": Every(steps=EVERY)})
    budget = scale.budget.model_copy(update={"steps": STEPS})
    small = scale.with_stages(pretrain=pretrain, evaluate=evaluate)
    return small.model_copy(update={"checkpoints": checkpoints, "budget": budget})


def checkpoint(context: Context, say: Say) -> Evidence:
    """Train, kill inside a save, resume; beside it train the same without a kill; compare."""
    from .context import Rehearsal
    from .training import kill, resume

    folder = context.folder / "checkpoint"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rehearsal = Rehearsal(context.source, context.overrides, context.on, folder, given=context.recipe)
    rehearsal.forker = context.forker
    rehearsal.__dict__["scale"] = small_run(context)  # a cached property
    rehearsal.recipe_file.write_text(dump_recipe(rehearsal.scale), encoding="utf-8")
    # Side by side: two small runs take hardly longer than one, and the comparison needs both.
    with _one_thread_each(), _left_alone(rehearsal) as child:
        killed = kill(rehearsal, say)
        resume(rehearsal, say)
        say("waiting for the run that was left alone")
        code = child.wait(lambda: None)
        words = child.last_words()
    if code:
        raise CheckFailed(f"the run that was left alone ended with exit code {code}: {words}")
    assert rehearsal.run is not None
    steps = rehearsal.scale.budget.steps or STEPS
    compared = _compare(rehearsal.run, next((folder / "alone").glob("*/manifest.json")).parent, steps)
    text = f"{killed.text}; resumed to step {steps}: {compared} values and all weights are those of a run that was not killed"
    return Evidence(text, {"run": str(rehearsal.run), "resumed_from": rehearsal.resumed_from, "compared": compared})


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Let processes that are started meanwhile have one thread: two small runs then do not wait for each other's."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        os.environ.pop("OMP_NUM_THREADS")
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


@contextmanager
def _left_alone(rehearsal: Rehearsal) -> Iterator[Child]:
    """Yield the same training in a process of its own, at the same time."""
    from .following import train_command
    from .processes import Child

    command = train_command(rehearsal.recipe_file, root=rehearsal.folder / "alone")
    with Child(command, rehearsal.folder / "alone.log", forker=rehearsal.forker) as child:
        yield child


def _compare(ours: Path, theirs: Path, steps: int = STEPS) -> int:
    """Compare logged values and the last weights; return how many values. Raises CheckFailed at the first that differs."""
    import torch

    from windtunnel.checkpoint import CheckpointStore
    from windtunnel.run import MetricsReader

    compared = 0
    with MetricsReader(ours / "metrics.sqlite") as a, MetricsReader(theirs / "metrics.sqlite") as b:
        for name in EXACT:
            resumed = {point.step: point.value for point in a.series(name)}
            alone = {point.step: point.value for point in b.series(name)}
            for step in sorted(resumed.keys() | alone.keys()):
                if resumed.get(step) != alone.get(step):
                    what = f"{name} at step {step}: {resumed.get(step)!r} resumed, {alone.get(step)!r} left alone"
                    raise CheckFailed(what, "something outside the package decides results: other software, changed files")
            compared += len(resumed)
    # Weights too: metrics may agree where an optimizer's state was lost, for a step or two.
    last = [CheckpointStore(run / "checkpoints").at(steps).weights() for run in (ours, theirs)]
    differ = [name for name, weights in last[0].items() if not torch.equal(weights, last[1][name])]
    if differ:
        raise CheckFailed(f"after step {steps} the weights differ: {', '.join(differ[:3])}")
    return compared


@one_thread()
def export(context: Context, say: Say) -> Evidence:
    """Export the best checkpoint, load the folder alone, compare logits."""
    from .after import export as compare

    return compare(_trained(context), say)


@one_thread()
def evaluation(context: Context, say: Say) -> Evidence:
    """Run the whole evaluation of the best checkpoint, on three problems and three samples."""
    from .after import evaluate

    return evaluate(_trained(context), say)


def _trained(context: Context) -> Rehearsal:
    """Return the run that `checkpoint` left, as the stages of a rehearsal take it."""
    from .context import Rehearsal

    rehearsal = Rehearsal(context.source, context.overrides, context.on, context.folder, given=context.recipe)
    rehearsal.__dict__["scale"] = small_run(context)
    rehearsal.run = Path(context.facts["checkpoint"]["run"])
    return rehearsal


CHECKS = (
    Check(
        "checkpoint", "SIGKILL inside a save costs only the steps since the one before; resumed, the run is the same to a bit",
        "runs need a local or POSIX-conforming file system; read the logs named", checkpoint,
        shows="first interruption", needs=("recipe", "torch", "data", "model"), applies=is_gpt_with_data,
        limit=240.0, stage="kill", forks=True,
    ),
    Check(
        "export", "the exported weights alone give the same model", "look at the free disk", export,
        shows="end", needs=("checkpoint",), applies=is_gpt_with_data, stage="export",
    ),
    Check(
        "evaluation", "a checkpoint can be measured: bits per byte, three problems, three samples", "look at stages.evaluate",
        evaluation, shows="end", needs=("checkpoint",), applies=is_gpt_with_data, stage="evaluate",
    ),
)  # fmt: skip
