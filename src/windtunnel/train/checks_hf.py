"""Check a Hugging Face model before it is trained: its size, its scale model's first steps, its optimizer, its checkpoints."""

from __future__ import annotations

import math
import os
import shutil
import signal
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.check import Check, CheckFailed, Context, Evidence, Findings, Say, judge_first_steps, one_thread, reached
from windtunnel.recipe import HuggingFaceModel

from .checks import judge_rate
from .scale_hf import random_batch, small_engine, small_job, vocabulary_of

if TYPE_CHECKING:
    from torch import Tensor

    from .hf import HFEngine


# Checkpoints: killed inside a save, resumed to the same bits.

SAVED, KILLED, LAST = 3, 6, 9
"""Steps: after which a checkpoint is saved, after which the next one is and its process killed, and the last."""
LIMIT = 200.0


@one_thread()
def checkpoint(context: Context, say: Say) -> Evidence:
    """Kill a process inside its second save; here go on from its first; compare with a run that was not killed."""
    import torch

    from windtunnel.checkpoint import CheckpointStore
    from windtunnel.train import child_context, restore_engine, whole_tensor

    # Forked where that is safe: a process of its own would import transformers once more.
    children = child_context("windtunnel.rl.engine")
    folder = context.folder / "tuning"
    shutil.rmtree(folder, ignore_errors=True)
    process = children.Process(target=_until_killed, args=(context, folder), daemon=True)
    process.start()  # before anything is computed here: then it is a fork
    say("a run that is not killed")
    with closing(small_engine(context, torch.bfloat16)) as engine:
        alone = _steps(engine, 0, LAST)
        wanted = {name: whole_tensor(p).clone() for name, p in engine.job.network.named_parameters()}
    say("a run that is killed inside a save")
    left = _await_kill(process, folder)
    store = CheckpointStore(folder)
    newest = store.newest_good(with_optimizer=True)
    # What was torn must not count, and what was whole before must still be there.
    if newest is None or newest.step != SAVED:
        found = "none" if newest is None else f"that of step {newest.step}"
        raise CheckFailed(f"after a kill in the save of step {KILLED} the newest good checkpoint is {found}, not step {SAVED}'s")
    say(f"going on from step {newest.step}")
    torch.manual_seed(context.seed + 1)  # what the checkpoint does not hold must not be right by chance
    with closing(small_engine(context, torch.bfloat16)) as engine:
        restore_engine(engine, newest)
        resumed = _steps(engine, newest.step, LAST)
        differ = [name for name, p in engine.job.network.named_parameters() if not torch.equal(whole_tensor(p), wanted[name])]
    for step, (one, other) in enumerate(zip(resumed, alone[newest.step :], strict=True), newest.step + 1):
        if one != other:
            raise CheckFailed(
                f"step {step}: loss {one[0]!r} resumed, {other[0]!r} not killed (gradient {one[1]!r}, {other[1]!r})"
            )
    if differ:
        raise CheckFailed(f"after step {LAST} the weights differ: {', '.join(differ[:3])}")
    trained = len(newest.part().entries)
    text = (
        f"SIGKILL inside the save of step {KILLED} ({left}); from step {SAVED} on the same losses, gradients and {len(wanted)} "
        f"tensors as a run that was not killed, to the last bit; {trained} trained tensors saved, {newest.bytes / 2**20:.1f} MiB"
    )
    return Evidence(text, {"path": str(newest.path), "resumed_from": newest.step, "bytes": newest.bytes, "tensors": trained})


def _until_killed(context: Context, folder: Path) -> None:
    """Train and save; killed in the second save, when all is written and nothing has its name."""
    import torch

    from windtunnel.checkpoint import CheckpointStore, Facts

    from .checkpoints import make_saver

    torch.set_num_threads(1)
    engine = small_engine(context, torch.bfloat16)
    for first, last, hook in ((0, SAVED, None), (SAVED, KILLED, _kill_this)):
        _steps(engine, first, last)
        saver = make_saver(engine, CheckpointStore(folder), engine.job.ranks, before_commit=hook)
        saver.save(Facts(last, engine.state_dict().facts))
        saver.wait()


def _kill_this() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _await_kill(process: Any, folder: Path) -> str:
    """Wait for the process's end; return what it left half done. Raises CheckFailed."""
    process.join(LIMIT)
    if process.is_alive():
        process.kill()
        raise CheckFailed(f"the run that is to be killed did not come to its second save within {LIMIT:.0f} s")
    if process.exitcode != -signal.SIGKILL:
        raise CheckFailed(f"the run that is to be killed ended by itself with exit code {process.exitcode}")
    torn = [path for path in folder.glob("*.tmp-*") if path.is_dir()]
    if not torn:
        raise CheckFailed("a process killed inside a save left no half-written folder: saves are written under their own name")
    return f"left: {', '.join(sorted(str(path.relative_to(torn[0])) for path in torn[0].rglob('*') if path.is_file()))}"


def _steps(engine: HFEngine, first: int, last: int) -> list[tuple[float, float]]:
    """Take steps, each with a batch of its own; return the loss and the gradient norm of each."""
    results = [engine.step(step + 1, 0.5).result() for step in range(first, last)]
    return [(result.loss, result.gradient_norm) for result in results]


# The model: size as planned, and the first steps of the scale model.

LOSS_TOLERANCE = 0.3
"""Nats: logits of random weights of deviation 0.02 are small, not zero."""
STEPS, FALL = 6, 0.005
RATE = 3e-3


def is_huggingface(context: Context) -> bool:
    """Return whether the model is a Hugging Face model."""
    return not context.is_gpt


@one_thread()
def model(context: Context, say: Say) -> Evidence:
    """Count the whole model as transformers builds it, and take a few steps with its scale model."""
    import torch

    from windtunnel.model import hf_shape

    recipe = context.recipe
    assert isinstance(recipe.model, HuggingFaceModel)
    shape = hf_shape(recipe.model.config)
    if recipe.model.sequence > shape.max_positions:
        what = f"model.sequence is {recipe.model.sequence:,}, the model has {shape.max_positions:,} positions"
        raise CheckFailed(what, f"--set model.sequence={shape.max_positions}")
    say("transformers builds the whole model, without memory")
    counted = _built_parameters(shape.raw)
    if counted != shape.parameters:
        raise CheckFailed(f"transformers builds {counted:,} parameters, the plan counts {shape.parameters:,}")
    say("building the scale model")
    # Weights packed in fp8 are only held beside bf16.
    job = small_job(context, torch.bfloat16 if recipe.model.weights == "fp8" else torch.float32)
    vocab = vocabulary_of(job)
    trained = {name: p for name, p in job.network.named_parameters() if p.requires_grad}
    x, y = random_batch(vocab, context.seed)
    losses: list[float] = []
    touched: set[str] = set()
    for step in range(STEPS):
        say(f"step {step + 1} of {STEPS} on one batch")
        # Once by hand, to look at the gradients; then as training does it.
        loss = job.network(x, y)[1] / y.numel()
        loss.backward()
        touched |= reached(job.network, step + 1)
        for parameter in trained.values():
            parameter.grad = None
        losses.append(float(loss.detach()))
        job.step([(x, y)], y.numel(), RATE)
    start = math.log(vocab)
    judge_first_steps(losses, start, sorted(set(trained) - touched), LOSS_TOLERANCE, FALL)
    size = f"{counted:,} parameters, as planned; scale model of {job.parameters.total:,}, {job.parameters.trained:,} trained"
    first = f"first loss {losses[0]:.3f}, ln {vocab} = {start:.3f}"
    text = f"{size}: {first}; gradients reach all {len(touched)} tensors; {STEPS} steps: {losses[-1]:.3f}"
    facts = {"parameters": counted, "trained": job.parameters.trained, "first_loss": losses[0], "losses": losses}
    return Evidence(text, facts)


def _built_parameters(raw: dict[str, Any]) -> int:
    """Count a config's model as transformers builds it: what is tied once, buffers that are saved included."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        whole = AutoModelForCausalLM.from_config(AutoConfig.for_model(**raw))
    parameters = {id(p): p.numel() for p in whole.parameters()}
    saved = {name for name, _ in whole.named_parameters()}
    # Experts' biases of DeepSeek-V3 are buffers, and published counts have them.
    extra = sum(b.numel() for name, b in whole.named_buffers() if name in whole.state_dict() and name not in saved)
    return sum(parameters.values()) + extra


# The optimizer: a step changes every trained weight and no frozen one.

RL_RATE = 1e-6
"""What is usual in reinforcement learning; in fine-tuning it is what a rate of null stands for."""
SMALL, SMALL_RATE = 1e9, 1e-4
"""Models of fewer parameters take higher rates."""
UNMOVED, HARDLY_MOVED = 0.01, 0.5
"""Shares of trained numbers that a step changes."""


@one_thread()
def optimizer(context: Context, say: Say) -> Evidence:
    """Take a step of the scale model: every trained weight changes by it, no frozen one."""
    import torch

    from .hf.build import ADAPTER_RATE, FULL_RATE

    found, recipe = Findings(), context.recipe
    stage = recipe.sft or recipe.rl
    assert stage is not None
    assert isinstance(recipe.model, HuggingFaceModel)
    full = SMALL_RATE if context.facts.get("model", {}).get("parameters", SMALL) < SMALL else FULL_RATE
    usual = RL_RATE * full / FULL_RATE if recipe.rl else full if recipe.model.adapter is None else ADAPTER_RATE
    rate = stage.learning_rate if stage.learning_rate is not None else usual
    name = "stages.sft" if recipe.sft else "stages.rl"
    judge_rate(f"{name}.learning_rate", rate, usual, found)
    compute = torch.float32 if stage.master or recipe.model.adapter is not None else torch.bfloat16
    job = small_job(context, torch.bfloat16 if recipe.model.weights == "fp8" else compute)
    before = {name: p.detach().clone() for name, p in job.network.named_parameters()}
    x, y = random_batch(vocabulary_of(job), context.seed)
    say("a step")
    for _ in range(2):  # a fresh adapter's first matrix moves only once the second is no longer zero
        job.step([(x, y)], y.numel(), rate)
    moved, trained = _moved(before, dict(job.network.named_parameters()), found)
    if moved < UNMOVED:
        what = f"at a learning rate of {rate:g} a step changes {moved:.1%} of the trained numbers, the rest round back"
        found.problem(what, f"keep fp32 weights: --set {name}.master=true", shows="end")
    elif moved < HARDLY_MOVED:
        found.warn(
            f"a step changes only {moved:.0%} of the trained numbers, the rest round back: keep fp32 weights (master: true)"
        )
    text = f"learning rate {rate:g}; a step changes {moved:.0%} of {trained:,} trained numbers, no frozen one"
    return found.evidence(text, {"learning_rate": rate, "moved": moved, "trained": trained})


def _moved(before: dict[str, Any], after: dict[str, Any], found: Findings) -> tuple[float, int]:
    """Return the share of trained numbers that changed, and how many are trained; a frozen one that changed is a problem."""
    import torch

    from .engine import local_part

    def numbers(tensor: Tensor) -> Tensor:
        """Return this rank's part; fp8 as bytes, which can be compared on every device."""
        own = local_part(tensor)
        return own.view(torch.uint8) if own.dtype.is_floating_point and own.element_size() == 1 else own

    changed = trained = 0
    for name, parameter in after.items():
        now, then = numbers(parameter), numbers(before[name])
        if parameter.requires_grad:
            trained += now.numel()
            changed += int((now != then).sum())
        elif not bool((now == then).all()):
            found.problem(f"{name} is frozen, and a step changed it", "report this: the package is at fault")
    return changed / max(1, trained), trained


# Held-out answers: the metric accepts the data's own.

MOST_ANSWERS, MOST_KERNELS = 50, 6
"""Questions whose own answers are judged; a kernel takes some tenths of a second."""


def has_answers(context: Context) -> bool:
    """Return whether held-out questions are answered and judged."""
    return context.recipe.sft is not None and context.recipe.sft.answers is not None


def answers(context: Context, say: Say) -> Evidence:
    """Judge the held-out conversations' own answers, every one of which must be right, and no longer than answers may be."""
    from windtunnel.evaluate import Completion, Judge, held_out_questions

    sft, found = context.recipe.sft, Findings()
    assert sft is not None
    assert sft.answers is not None
    asked, data = sft.answers, context.prepared
    most = MOST_KERNELS if asked.metric == "kernel" else MOST_ANSWERS
    questions = held_out_questions(data, context.recipe, min(asked.prompts, most), tokens=asked.tokens)
    say("judging the data's own answers")
    with Judge(asked) as judge:
        judged = judge.judge(questions.asked, [Completion(question.truth, False) for question in questions.asked])
    bad = next((answer for answer in judged.answers if not answer.right), None)
    if bad is not None:
        found.problem(
            f"{judged.right} of {len(judged.answers)} of the data's own answers are right by the metric {asked.metric}; "
            f"{bad.text[:60]!r} is not: {bad.message}",
            f"another stages.{sft.name}.answers.metric or where: no model can be better than the data by it",
        )
    # One more for the token that ends it.
    longest = max(len(data.tokenizer.encode(question.truth)) for question in questions.asked) + 1
    if longest > asked.tokens:
        found.warn(f"own answers have up to {longest:,} tokens: --set stages.{sft.name}.answers.tokens={longest}")
    if questions.too_long:
        found.warn(f"{questions.too_long:,} held-out conversations have no room for an answer and are not asked")
    return found.evidence(
        f"{judged.right} of the data's own {len(judged.answers)} answers are right by {asked.metric}, the longest has {longest} "
        f"tokens of {asked.tokens}",
        {"right": judged.right, "asked": len(judged.answers), "longest": longest, "too_long": questions.too_long},
    )


CHECKS = (
    Check(
        "held-out-answers", "the metric of held-out answers can be used, and accepts the data's own answers",
        "look at stages.sft.answers", answers, shows="first checkpoint", needs=("recipe", "torch", "data"), applies=has_answers,
    ),
    Check(
        "model", "it has the planned size, starts at ln V, and every tensor learns",
        "look at the recipe's model; a package that was changed: make test", model,
        shows="first steps", needs=("recipe", "torch", "data"), applies=is_huggingface,
    ),
    Check(
        "optimizer", "its rates are near what works; a step changes every trained weight, no other",
        "leave the rates to the rules", optimizer,
        shows="first steps", needs=("recipe", "torch", "data", "model"), applies=is_huggingface,
    ),
    Check(
        "tuning-checkpoint", "SIGKILL inside a save costs only the steps since the one before; then the same to a bit",
        "checkpoints need a local or POSIX-conforming file system; else report this with the model's config.json", checkpoint,
        shows="first interruption", needs=("recipe", "torch", "model"), applies=is_huggingface, limit=300.0,
    ),
)  # fmt: skip
