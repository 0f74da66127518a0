"""Checkpoints of fine-tuning, on the scale model: killed inside a save, gone on with to the same bits, loaded elsewhere."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.recipe import HuggingFaceModel

from . import model_causal
from .context import Context
from .model_learning import one_thread
from .types import Check, CheckFailed, Evidence, Say

if TYPE_CHECKING:
    import torch

    from windtunnel.train import CausalJob

SAVED, KILLED, LAST, RATE = 3, 6, 9, 1e-3
"""Steps: after which a checkpoint is saved, after which the next one is and its process killed, and the last."""
LIMIT = 200.0


@one_thread()
def checkpoint(context: Context, say: Say) -> Evidence:
    """Kill a process inside its second save; here go on from its first; compare with a run that was not killed."""
    import torch

    from windtunnel.run import CheckpointStore
    from windtunnel.train import child_context, restore_job, whole_tensor

    children = child_context("windtunnel.rl.engine")
    folder = context.folder / "tuning"
    shutil.rmtree(folder, ignore_errors=True)
    process = children.Process(target=_until_killed, args=(context, folder), daemon=True)
    process.start()  # before anything is computed here: then it is a fork
    say("a run that is not killed")
    with closing(_job(context)) as job:
        alone = _steps(context, job, 0, LAST)
        wanted = {name: whole_tensor(p).clone() for name, p in job.network.named_parameters()}
    say("a run that is killed inside a save")
    left = _await_kill(process, folder)
    store = CheckpointStore(folder)
    newest = store.newest_good(with_optimizer=True)
    if newest is None or newest.step != SAVED:
        found = "none" if newest is None else f"that of step {newest.step}"
        raise CheckFailed(f"after a kill in the save of step {KILLED} the newest good checkpoint is {found}, not step {SAVED}'s")
    say(f"going on from step {newest.step}")
    torch.manual_seed(context.seed + 1)  # what the checkpoint does not hold must not be right by chance
    with closing(_job(context)) as job:
        restore_job(job, newest)
        resumed = _steps(context, job, newest.step, LAST)
        differ = [name for name, p in job.network.named_parameters() if not torch.equal(whole_tensor(p), wanted[name])]
    for step, (one, other) in enumerate(zip(resumed, alone[newest.step :], strict=True), newest.step + 1):
        if one != other:
            raise CheckFailed(
                f"step {step}: loss {one[0]!r} resumed, {other[0]!r} not killed (gradient {one[1]!r}, {other[1]!r})"
            )
    if differ:
        raise CheckFailed(f"after step {LAST} the weights differ: {', '.join(differ[:3])}")
    trained = len(newest.weights())
    text = (
        f"SIGKILL inside the save of step {KILLED} ({left}); from step {SAVED} on the same losses, gradients and {len(wanted)} "
        f"tensors as a run that was not killed, to the last bit; {trained} trained tensors saved, {newest.bytes / 2**20:.1f} MiB"
    )
    return Evidence(text, {"path": str(newest.path), "resumed_from": newest.step, "bytes": newest.bytes, "tensors": trained})


@one_thread()
def export(context: Context, say: Say) -> Evidence:
    """Write the checkpoint's model as a Hugging Face folder, load it with transformers alone, compare log-probabilities."""
    import torch

    from windtunnel.rl import BrokenPublication, Engine, Publisher, publish_weights
    from windtunnel.run import CheckpointStore
    from windtunnel.train import restore_job

    path = Path(context.facts["tuning-checkpoint"]["path"])
    model = context.recipe.model
    assert isinstance(model, HuggingFaceModel)
    # In bf16 a small adapter could be lost unseen; weights packed in fp8 are only held beside bf16.
    dtype = torch.bfloat16 if model.weights == "fp8" else torch.float32
    with closing(_job(context, dtype)) as job:
        restore_job(job, CheckpointStore(path.parent).at(SAVED))
        tokens, _ = model_causal.random_batch(model_causal.vocabulary_of(job), context.seed + 2)
        say("writing a Hugging Face folder")
        folder = publish_weights(job, Publisher(path.parent / "exported"), SAVED, dtype=dtype, canary=tokens, compute=dtype)
    assert folder is not None
    say("transformers loads it")
    try:
        receipt = Engine(dtype).load(folder, SAVED)
    except BrokenPublication as error:
        raise CheckFailed(f"transformers does not get the model that was trained: {error}") from None
    assert receipt.canary is not None
    text = (
        f"{receipt.tensors} tensors, {receipt.bytes / 2**20:.1f} MiB, loaded by transformers alone: log-probabilities of "
        f"{receipt.canary.tokens} tokens differ by {receipt.canary.mean:.1g} on average, in {str(dtype).removeprefix('torch.')}"
    )
    return Evidence(text, {"tensors": receipt.tensors, "bytes": receipt.bytes, "mean": receipt.canary.mean})


def _until_killed(context: Context, folder: Path) -> None:
    """Train and save; killed in the second save, when all is written and nothing has its name."""
    import torch

    from windtunnel.run import CheckpointStore, CheckpointWriter
    from windtunnel.train import job_state

    torch.set_num_threads(1)
    job = _job(context)
    for first, last, hook in ((0, SAVED, None), (SAVED, KILLED, _kill_this)):
        _steps(context, job, first, last)
        weights, optimizer, state = job_state(job)
        writer = CheckpointWriter(CheckpointStore(folder), before_commit=hook)
        writer.start(last, weights, optimizer, state)
        writer.wait()


def _kill_this() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _await_kill(process: Any, folder: Path) -> str:
    """Wait for the process's end; what it left half done. Raises CheckFailed."""
    process.join(LIMIT)
    if process.is_alive():
        process.kill()
        raise CheckFailed(f"the run that is to be killed did not come to its second save within {LIMIT:.0f} s")
    if process.exitcode != -signal.SIGKILL:
        raise CheckFailed(f"the run that is to be killed ended by itself with exit code {process.exitcode}")
    torn = [path for path in folder.glob("*.tmp-*") if path.is_dir()]
    if not torn:
        raise CheckFailed("a process killed inside a save left no half-written folder: saves are written under their own name")
    return f"left: {', '.join(sorted(path.name for path in torn[0].iterdir()))}"


def _job(context: Context, dtype: torch.dtype | None = None) -> CausalJob:
    """The recipe's way of training, in bf16 where nothing else is asked for, with the same random numbers every time."""
    import torch

    from windtunnel.model import causal_shape

    raw = causal_shape(str(model_causal.write_scale_config(context))).raw
    job = model_causal.build_job(context, raw, dtype or torch.bfloat16)
    torch.manual_seed(context.seed)
    return job


def _steps(context: Context, job: CausalJob, first: int, last: int) -> list[Any]:
    """(sum of losses, squared gradient norm) of steps, each with a batch of its own."""
    found = []
    for step in range(first, last):
        x, y = model_causal.random_batch(model_causal.vocabulary_of(job), context.seed + 100 + step)
        sums = job.step([(x, y)], y.numel(), RATE)
        found.append((float(sums[0]), float(sums[2])))
    return found


def _is_tuned(context: Context) -> bool:
    """Recipes without engines: where there are some, the check of the weights' way to them shows more."""
    return not context.is_gpt and context.recipe.rl is None


CHECKS = (
    Check(
        "tuning-checkpoint", "SIGKILL inside a save costs only the steps since the one before; then the same to a bit",
        "checkpoints need a local or POSIX-conforming file system; else report this with the model's config.json", checkpoint,
        shows="first interruption", needs=("recipe", "torch", "model"), applies=model_causal.is_huggingface, limit=300.0,
    ),
    Check(
        "tuning-export", "transformers alone loads what was trained, the adapter merged, and computes the same",
        "report this with the model's config.json: the package or transformers is at fault", export,
        shows="end", needs=("tuning-checkpoint",), applies=_is_tuned,
    ),
)  # fmt: skip
