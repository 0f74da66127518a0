"""The scale model on as many processes as the layout has axes: the same losses as in one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from windtunnel.plan import Layout, Plan
from windtunnel.recipe import CountedCorpus, HuggingFaceModel, Recipe, UserError

from . import model_causal
from .context import Context
from .types import Check, CheckFailed, Evidence, Say

STEPS, WARM_UP = 4, 1
SEQUENCES = 4
"""Of a step over all ranks."""
GPT_TOLERANCE, CAUSAL_TOLERANCE = 2e-3, 1e-4
"""Relative: sums over ranks are taken in another order, and Muon iterates on what comes of it."""
TIMEOUT = 100.0


def _has_ranks(context: Context) -> bool:
    """Whether there is a scale model to spread, and steps that a trial can take."""
    return context.recipe.rl is None and (context.has_data or not context.is_gpt)


def ranks(context: Context, say: Say) -> Evidence:
    """A few steps on random tokens by one process, and by two, at the same time."""
    from windtunnel.launch import try_steps

    plan = _plan(context)
    most = max(1, max((p.ranks for p in ([plan.layout] if plan else [])), default=2))
    if most == 1:
        return Evidence("the layout has one rank: nothing is spread", {"ranks": 1})
    if plan is not None and plan.layout.tensor * plan.layout.pipeline * plan.layout.expert > 1:
        text = f"{plan.layout.describe()}: these axes are run by {plan.layout.engine}"
        return Evidence(text, absent="rehearse on the target: only data-parallel ranks can be tried here")
    recipe, vocab = _scaled(context)
    say("one process and two")
    with ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(
                try_steps, recipe, _layout(recipe, plan, count), steps=STEPS, warm_up=WARM_UP, vocab=vocab, timeout=TIMEOUT
            )
            for count in (1, 2)
        ]
        one, two = (job.result() for job in jobs)
    for count, trial in ((1, one), (2, two)):
        if trial.failure:
            raise CheckFailed(
                f"on {count} rank{'s' if count > 1 else ''}: {trial.failure}", "torchrun must be able to open ports on localhost"
            )
    worst = max(abs(b / a - 1) for a, b in zip(one.losses, two.losses, strict=True))
    allowed = GPT_TOLERANCE if context.is_gpt else CAUSAL_TOLERANCE
    how = _layout(recipe, plan, 2).describe().split(";")[0]
    text = f"{len(one.losses)} steps on {how}: losses {'are those of' if worst == 0 else f'within {worst:.0e} of'} one process"
    if worst > allowed:
        raise CheckFailed(f"{text}; {allowed:g} is allowed for another order of sums")
    return Evidence(text, {"ranks": 2, "steps": len(one.losses), "largest_relative_difference": worst})


def _plan(context: Context) -> Plan | None:
    try:
        return context.plan()
    except UserError:
        return None  # the check of the plan says why there is none


def _scaled(context: Context) -> tuple[Recipe, int | None]:
    """The scale model as a recipe that a trial takes, and its vocabulary."""
    if context.is_gpt:
        return context.scale, context.prepared.tokenizer.vocab
    model = context.recipe.model
    assert isinstance(model, HuggingFaceModel)
    small = model.model_copy(update={"config": str(model_causal.write_scale_config(context)), "sequence": model_causal.SEQUENCE})
    data = context.recipe.data.model_copy(update={"corpus": CountedCorpus()})
    return context.recipe.model_copy(update={"model": small, "data": data}), None


def _layout(recipe: Recipe, plan: Plan | None, ranks: int) -> Layout:
    sequence = recipe.gpt.sequence if recipe.model.kind == "gpt" else model_causal.SEQUENCE
    shard, recompute = (plan.layout.shard, plan.layout.recompute) if plan else ("optimizer", "none")
    fp8 = recipe.model.kind == "huggingface" and recipe.model.weights == "fp8"
    return Layout(
        ranks=ranks, micro_batch=2, accumulation=SEQUENCES // (2 * ranks), sequence=sequence, precision="bf16" if fp8 else "fp32",
        compile=False, device="cpu", shard=shard, recompute=recompute,
    )  # fmt: skip


CHECKS = (
    Check(
        "ranks", "the scale model spread over ranks gives the losses of one process", "leave layout to the plan", ranks,
        shows="first steps", needs=("recipe", "torch", "data", "model"), applies=_has_ranks, limit=150.0, stage="ranks",
    ),
)  # fmt: skip
