"""A Hugging Face model before it is trained: its size as planned, and its scale model's first steps by the fine-tuning engine."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.recipe import HuggingFaceModel
from windtunnel.run import write_atomic

from .context import Context
from .model_learning import judge_first_steps, reached
from .model_small import small_config
from .types import CheckFailed, Evidence, Say

if TYPE_CHECKING:
    from torch import Tensor, dtype

    from windtunnel.train import CausalJob

LOSS_TOLERANCE = 0.3
"""Nats: logits of random weights of deviation 0.02 are small, not zero."""
STEPS, FALL = 6, 0.005
RATE = 3e-3
ROWS, SEQUENCE = 4, 64


def is_huggingface(context: Context) -> bool:
    """Whether the model is a Hugging Face model."""
    return not context.is_gpt


def scale_config(context: Context) -> dict[str, Any]:
    """The recipe's config.json made small. Raises UserError for one that cannot be used."""
    from windtunnel.model import causal_shape

    model = context.recipe.model
    assert isinstance(model, HuggingFaceModel)
    return small_config(causal_shape(model.config).raw)


def write_scale_config(context: Context) -> Path:
    """The small config as a file that a recipe can name."""
    folder = context.folder / "scale-model"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    write_atomic(path, json.dumps(scale_config(context)), durable=False)  # several processes may want it at once
    return path


def model(context: Context, say: Say) -> Evidence:
    """Count the whole model as transformers builds it, and take a few steps with its scale model."""
    import torch

    from windtunnel.model import causal_shape

    recipe = context.recipe
    assert isinstance(recipe.model, HuggingFaceModel)
    shape = causal_shape(recipe.model.config)
    if recipe.model.sequence > shape.max_positions:
        what = f"model.sequence is {recipe.model.sequence:,}, the model has {shape.max_positions:,} positions"
        raise CheckFailed(what, f"--set model.sequence={shape.max_positions}")
    say("transformers builds the whole model, without memory")
    counted = _built_parameters(shape.raw)
    if counted != shape.parameters:
        raise CheckFailed(f"transformers builds {counted:,} parameters, the plan counts {shape.parameters:,}")
    say("building the scale model")
    small = causal_shape(str(write_scale_config(context)))
    # Weights packed in fp8 are only held beside bf16.
    job = build_job(context, small.raw, torch.bfloat16 if recipe.model.weights == "fp8" else torch.float32)
    trained = {name: p for name, p in job.network.named_parameters() if p.requires_grad}
    x, y = random_batch(small.vocab, context.seed)
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
    job.close()
    start = math.log(small.vocab)
    judge_first_steps(losses, start, sorted(set(trained) - touched), LOSS_TOLERANCE, FALL)
    size = f"{counted:,} parameters, as planned; scale model of {job.parameters.total:,}, {job.parameters.trained:,} trained"
    first = f"first loss {losses[0]:.3f}, ln {small.vocab} = {start:.3f}"
    text = f"{size}: {first}; gradients reach all {len(touched)} tensors; {STEPS} steps: {losses[-1]:.3f}"
    facts = {"parameters": counted, "trained": job.parameters.trained, "first_loss": losses[0], "losses": losses}
    return Evidence(text, facts)


def _built_parameters(raw: dict[str, Any]) -> int:
    """As transformers counts the model of a config, what is tied once, buffers that are saved included."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        whole = AutoModelForCausalLM.from_config(AutoConfig.for_model(**raw))
    parameters = {id(p): p.numel() for p in whole.parameters()}
    saved = {name for name, _ in whole.named_parameters()}
    extra = sum(b.numel() for name, b in whole.named_buffers() if name in whole.state_dict() and name not in saved)
    return sum(parameters.values()) + extra


def random_batch(vocab: int, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens and targets (4, 64)."""
    import torch

    tokens = torch.randint(0, vocab, (ROWS, SEQUENCE + 1), generator=torch.Generator().manual_seed(seed))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def vocabulary_of(job: CausalJob) -> int:
    """Tokens that a job's model knows."""
    size: int = job.network.model.config.get_text_config().vocab_size
    return size


def build_job(context: Context, raw: dict[str, Any], compute: dtype) -> CausalJob:
    """The recipe's way of training, on the model of a config, on one rank here."""
    import torch

    from windtunnel.train import Ranks, build_causal

    recipe = context.recipe
    stage = recipe.sft or recipe.rl
    assert stage is not None
    assert isinstance(recipe.model, HuggingFaceModel)
    alone = Ranks(0, 1, torch.device("cpu"), None)
    return build_causal(
        raw, lora=recipe.model.adapter, weights=recipe.model.weights, master=stage.master, states=stage.states,
        recompute="block" if recipe.layout.recompute == "block" else "none", compile=False,
        shard=recipe.layout.shard or "full", ranks=alone,
        sequence=SEQUENCE, seed=context.seed, compute=compute,
    )  # fmt: skip
