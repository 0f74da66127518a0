"""The layout: every count divides what it shares, and the scale model spread over ranks gives the losses of one process."""

from __future__ import annotations

from collections.abc import Iterator

from windtunnel.plan import Layout, Plan
from windtunnel.recipe import GPTModel, HuggingFaceModel
from windtunnel.rig import Rig

from . import layout_ranks
from .context import Context
from .types import Check, Evidence, Findings, Say

UNBALANCED = 0.15
"""Of a pipeline's longest stage over the mean."""
UNEVEN = 0.02
"""Tokens of a step may differ from the recipe's by so much, for whole sequences."""


def layout(context: Context, say: Say) -> Evidence:
    """Every number of ranks against what it shares, for each rig."""
    found, parts = Findings(), []
    for rig in context.rigs:
        plan = context.plan(rig)
        if not plan.fits:
            continue  # the check of the plan says why
        for role, chosen, gpus in _layouts(plan, rig):
            where = f"{rig.name}, {role}" if role else rig.name
            _judge_ranks(where, chosen, gpus, rig, found)
            _judge_model(context, where, chosen, found)
            parts.append(f"{where}: {chosen.describe()}")
        _judge_batch(context, rig, plan, found)
    return found.evidence("; ".join(parts) or "no rig fits", {"layouts": parts}, blocks=False)


def _layouts(plan: Plan, rig: Rig) -> Iterator[tuple[str, Layout, int]]:
    """(role, its layout, its GPUs): one without a role, but for reinforcement learning."""
    if not plan.roles:
        yield "", plan.layout, rig.gpus
    for name, role in plan.roles.items():
        yield name, role.layout, role.gpus


def _judge_ranks(where: str, chosen: Layout, gpus: int, rig: Rig, found: Findings) -> None:
    axes = chosen.tensor * chosen.pipeline
    if chosen.ranks % axes:
        found.problem(f"{where}: {chosen.ranks} ranks cannot be {chosen.tensor} tensor x {chosen.pipeline} pipeline ranks")
    if (chosen.data * chosen.tensor) % chosen.expert:
        found.problem(f"{where}: {chosen.data * chosen.tensor} data x tensor ranks cannot share experts over {chosen.expert}")
    if gpus and chosen.ranks > gpus:
        found.problem(f"{where}: {chosen.ranks} ranks for {gpus} GPUs")
    elif gpus and chosen.ranks < gpus:
        found.warn(
            f"{where}: {gpus - chosen.ranks} of {gpus} GPUs stand idle but are paid for: another batch size or a smaller rig"
        )
    if rig.gpu is not None and chosen.tensor > rig.gpus_per_node:
        what = f"{where}: {chosen.tensor} tensor ranks reach over nodes of {rig.gpus_per_node} GPUs"
        found.warn(f"{what}: every layer waits for the network; --set layout.tensor={rig.gpus_per_node}")


def _judge_model(context: Context, where: str, chosen: Layout, found: Findings) -> None:
    """What the model is cut into must come out whole; layers may be spread unevenly, but the longest stage sets the pace."""
    for name, ranks, key in (("heads", chosen.tensor, "tensor"), ("experts", chosen.expert, "expert")):
        count = _count(context, name) if ranks > 1 else 0
        if ranks > 1 and (count == 0 or count % ranks):
            found.problem(f"{where}: {ranks} {key} ranks cannot share {count} {name}", f"--set layout.{key}=null")
    if chosen.pipeline > 1:
        layers = _count(context, "layers")
        longest = -(-layers // chosen.pipeline)
        if layers < chosen.pipeline:
            found.problem(f"{where}: {chosen.pipeline} pipeline ranks cannot share {layers} layers", "--set layout.pipeline=null")
        elif longest > (1 + UNBALANCED) * layers / chosen.pipeline:
            found.warn(
                f"{where}: {layers} layers over {chosen.pipeline} pipeline ranks: the one with {longest} holds up the others"
            )


def _count(context: Context, name: str) -> int:
    from windtunnel.model import causal_shape

    model = context.recipe.model
    if isinstance(model, GPTModel):
        return 0  # our engine splits none of them
    shape = causal_shape(model.config)
    if name == "experts":
        return shape.experts.count if shape.experts else 0
    return shape.heads if name == "heads" else shape.layers


def _judge_batch(context: Context, rig: Rig, plan: Plan, found: Findings) -> None:
    recipe, chosen = context.recipe, plan.layout
    asked = recipe.pretrain.batch_tokens if context.is_gpt else recipe.sft.batch_tokens if recipe.sft else None
    if asked is not None and abs(chosen.batch_tokens / asked - 1) > UNEVEN:
        what = f"{rig.name}: a step takes {chosen.batch_tokens:,} tokens, the recipe asks for {asked:,}"
        found.warn(f"{what}: {chosen.data} ranks x whole sequences of {chosen.sequence:,} do not give it")
    rl, learner = recipe.rl, plan.roles.get("learner")
    if rl is not None and learner is not None:
        answers, ranks = rl.prompts * rl.samples, learner.layout.data
        if answers % ranks:
            what = f"{rig.name}: {answers:,} answers a round cannot be spread evenly over {ranks} learners"
            found.problem(what, f"make stages.rl.prompts x samples a multiple of {ranks}", shows="first steps")


def _splits(context: Context) -> bool:
    return isinstance(context.recipe.model, GPTModel | HuggingFaceModel)


CHECKS = (
    Check(
        "layout", "every count of ranks divides what it shares; no GPU is left over", "leave layout to the plan", layout,
        shows="start", rung="target", needs=("recipe", "rig", "plan"), applies=_splits, apart=False,
    ),
    *layout_ranks.CHECKS,
)  # fmt: skip
