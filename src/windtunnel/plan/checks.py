"""Check the plan: it fits the rigs, the budget leaves room for warm-up, checkpoints and validations, ranks divide the work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from windtunnel.check import Check, Context, Evidence, Findings, Say
from windtunnel.plan import Layout, Plan, plan_job
from windtunnel.recipe import Every, GPTModel, HuggingFaceModel, Recipe
from windtunnel.rig import Rig

from .own_engine import other_engine
from .text import OF_STAGE, count_text, hours_text

WARMUP_SHARE = 0.3
STARTUP_SHARE = 0.25
# A run of so long should be able to lose less than all of it.
LONG_HOURS = 0.5


def _plan(context: Context, say: Say) -> Evidence:
    found, parts, facts = Findings(), [], dict[str, dict[str, Any]]()
    warned: dict[str, list[str]] = {}
    for rig in context.rigs:
        say(rig.name)
        plans = context.plans(rig)
        for recipe, plan in zip(context.stages, plans, strict=True):
            name = f"{rig.name}{OF_STAGE}{recipe.stage}" if len(plans) > 1 else rig.name
            facts[name] = {"fits": plan.fits, "hours": plan.hours, "dollars": plan.dollars, "peak_gib": plan.peak_gib}
            if not plan.fits:
                options = "; or ".join(f"{a.change} ({a.why})" for a in plan.alternatives)
                found.problem(f"{plan.recipe} does not fit {name}: " + "; ".join(plan.reasons), options or None)
                facts[name]["instead"] = [a.rig for a in plan.alternatives if a.rig]
                continue
            parts.append(f"{name}: {summary(plan)}")
            for warning in plan.warnings:
                warned.setdefault(warning, []).append(name)
        if len(plans) > 1:
            parts.append(_together(rig, plans))
    # Once for all rigs and stages of which it is true: of two rigs and two stages most is true four times.
    for warning, names in warned.items():
        found.warn(f"{'; '.join(names)}: {warning}" if len(facts) > 1 else warning)
    return found.evidence("; ".join(parts), {"plans": facts})


def _together(rig: Rig, plans: list[Plan]) -> str:
    """Hours and dollars of all stages."""
    dollars = [plan.dollars for plan in plans]
    cost = "" if None in dollars else f", ${sum(d for d in dollars if d is not None):,.2f}"
    return f"{rig.name}: all {len(plans)} stages {sum(plan.hours for plan in plans):.2f} h{cost}"


def summary(plan: Plan) -> str:
    """Return 'depth 25, 1.53 B parameters, 60.4 of 75.1 GiB a rank; 9,000 steps in 1.00 h, $37.52'."""
    size = f"{plan.params / 1e6:,.1f} M parameters" if plan.params < 1e9 else f"{plan.params / 1e9:,.2f} B parameters"
    cost = "" if plan.dollars is None else f", ${plan.dollars:,.2f}"
    memory = f"{plan.peak_gib:.1f} of {plan.limit_gib:.1f} GiB a rank"
    name = plan.model if plan.depth is None else f"depth {plan.depth}"
    return f"{name}, {size}, {memory}; {plan.steps:,} {'rounds' if plan.roles else 'steps'} in {plan.hours:.2f} h{cost}"


def _budget(context: Context, say: Say) -> Evidence:
    found, parts = Findings(), []
    asked: list[str] = []
    for rig in context.rigs:
        say(rig.name)
        dollars = context.recipe.budget.dollars
        if dollars is not None and rig.dollars_per_hour is None:
            fix = f"name its price: --on '{rig.name}@$2.50' (a GPU-hour), or WINDTUNNEL_PRICE on the machine"
            found.problem(f"budget.dollars is {dollars:g}, and {rig.name} has no known price", fix)
        for recipe, plan in zip(context.stages, context.plans(rig), strict=True):
            if plan.fits:  # else the check of the plan says it
                stage = f"stage {recipe.stage} " if len(context.stages) > 1 else ""
                parts.append(stage + _length(found, recipe, rig, plan))
        asked += [rig.name] if any(plan.fits and plan.needs_yes for plan in context.plans(rig)) else []
    if asked:
        on = f"on {', '.join(asked)} `windtunnel train` asks for --yes"
        found.warn(f"{on}, which a job without a terminal cannot give: the check of the plan says why")
    return found.evidence("; ".join(parts) or "nothing fits")


def _length(found: Findings, recipe: Recipe, rig: Rig, plan: Plan) -> str:
    """Look at one plan's length; say it in words."""
    startup = sum(plan.startup.values()) / 3600
    if plan.hours > 0 and startup > STARTUP_SHARE * plan.hours:
        found.warn(f"on {rig.name} {startup / plan.hours:.0%} of the run is starting up: a longer budget is worth more")
    words = f"{rig.name}: {plan.steps:,} steps, ended by {plan.ended_by}"
    if isinstance(recipe.model, GPTModel):
        _warmup(found, recipe, rig, plan)
        words += _interval(found, "validation", recipe.pretrain.validate_every, rig, plan)
        words += _interval(found, "checkpoint", recipe.checkpoints.every, rig, plan)
    return words


def _warmup(found: Findings, recipe: Recipe, rig: Rig, plan: Plan) -> None:
    steps = recipe.pretrain.schedule.warmup_steps
    fix = f"--set stages.pretrain.schedule.warmup_steps={max(1, plan.steps // 20)}, or a larger budget"
    if steps >= plan.steps:
        what = f"on {rig.name} the run ends after {plan.steps:,} steps, within its warm-up of {steps:,}"
        found.problem(f"{what}: the learning rate never reaches its peak", fix, shows="end")
    elif steps > WARMUP_SHARE * plan.steps:
        found.warn(f"on {rig.name} {steps:,} of {plan.steps:,} steps are warm-up: {fix}")


def _interval(found: Findings, what: str, every: Every, rig: Rig, plan: Plan) -> str:
    """Look at how often something happens in a run; say it in words."""
    steps = float(every.steps) if every.steps else (every.seconds or 0.0) / max(plan.step_seconds, 1e-9)
    times = int(plan.steps / steps) if steps > 0 else 0
    key = "stages.pretrain.validate_every" if what == "validation" else "checkpoints.every"
    if times < 1:
        harm = "a run that is killed loses everything" if what == "checkpoint" else "only its end shows whether it overfits"
        text = f"on {rig.name} the first {what} is due after the run's end ({plan.hours:.2f} h): {harm}"
        fix = f"--set '{key}={max(1, plan.steps // 10)} steps'"
        if what == "checkpoint" and plan.hours >= LONG_HOURS:
            found.problem(text, fix, shows="first interruption")
        else:
            found.warn(f"{text}; {fix}")
    return f", {times} {what}s"


# The layout: every number of ranks divides what it shares.

# Of a pipeline's longest stage over the mean.
UNBALANCED = 0.15
# Tokens of a step may differ from the recipe's by so much, for whole sequences.
UNEVEN = 0.02


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
        other = other_engine(context.recipe, plan.layout)
        if other is not None:
            found.problem(f"{rig.name}: {other[0]}", other[1])
    return found.evidence("; ".join(parts) or "no rig fits", {"layouts": parts}, blocks=False)


def _layouts(plan: Plan, rig: Rig) -> Iterator[tuple[str, Layout, int]]:
    """Yield (role, its layout, its GPUs): one without a role, but for reinforcement learning."""
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
    """Check that what the model is cut into comes out whole; layers may be spread unevenly, the longest stage sets the pace."""
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
    from windtunnel.model import hf_shape

    model = context.recipe.model
    if isinstance(model, GPTModel):
        return 0  # our engine splits none of them
    shape = hf_shape(model.config)
    if name == "experts":
        return shape.experts.count if shape.experts else 0
    return shape.heads if name == "heads" else shape.layers


def _judge_batch(context: Context, rig: Rig, plan: Plan, found: Findings) -> None:
    recipe, chosen = context.recipe, plan.layout
    asked = recipe.pretrain.batch_tokens if context.is_gpt else recipe.sft.batch_tokens if recipe.sft else None
    if asked is not None and abs(chosen.batch_tokens / asked - 1) > UNEVEN:
        what = f"{rig.name}: a step takes {chosen.batch_tokens:,} tokens, the recipe asks for {asked:,}"
        found.warn(f"{what}: {chosen.data} ranks x whole sequences of {chosen.sequence:,} do not give it")


def _splits(context: Context) -> bool:
    return isinstance(context.recipe.model, GPTModel | HuggingFaceModel)


# The questions that should have answers before GPUs are rented: how much, how long, and what if it fails.

NO_LIMIT = "no limit in dollars or hours"
# Dollars from which on a job without a limit, or without an expectation, is warned of.
MUCH = 100.0


def questions(context: Context, say: Say) -> Evidence:
    """Answer what can be answered from recipe and plan; warn of what is left open where the job is dear."""
    found, rig = Findings(), context.rig
    plans = [plan for plan in context.plans() if plan.fits]
    if len(plans) < len(context.stages):
        return Evidence("the plan does not fit: see the check plan")
    names = [stage.name for stage in context.loaded.training]
    job = plan_job(context.loaded, rig, list(zip(names, plans, strict=True)))
    hours = sum(plan.hours for plan in plans)
    dollars = None if rig.dollars_per_hour is None else hours * rig.dollars_per_hour
    answers = {
        "data": "; ".join(dict.fromkeys(_data(plan) for plan in plans)),
        "training": f"{hours_text(hours)}" + ("" if dollars is None else f", ${dollars:,.2f}"),
    }
    if job is not None:
        cost = "" if job.dollars is None else f", ${job.dollars:,.2f}"
        answers["from download to evaluation"] = f"{hours_text(job.hours)}{cost}, {job.disk_bytes / 1e9:,.0f} GB of disk"
    dear = (dollars or 0.0) >= MUCH
    answers["most"] = _limit(context.loaded)
    if dear and answers["most"] == NO_LIMIT:
        found.warn(f"nothing ends the job before it has cost ${dollars:,.0f}: --set budget.dollars={1.2 * (dollars or 0):.0f}")
    answers["if it is killed"] = _lost(context.recipe, plans[-1], rig.dollars_per_hour)
    bands = context.recipe.bands
    answers["if it diverges"] = f"back to the last good checkpoint, {bands.rewinds} times, then exit 1"
    answers["watched by"] = "health bands in the run; windtunnel watch, logs and stop from anywhere; TensorBoard's files"
    expected = context.loaded.expect.ranges()
    answers["expected"] = ", ".join(f"{name} {_range(ends)}" for name, ends in expected.items()) or "nothing written down"
    if dear and not expected:
        found.warn("write down what you expect before the money is spent: expect: {accuracy: [0.4, 0.6], hours: [1, 3]}")
    return found.evidence("; ".join(f"{name}: {text}" for name, text in answers.items()), answers)


def _data(plan: Plan) -> str:
    epochs = "" if plan.epochs is None else f", {plan.epochs:.2g} epochs"
    size = "size not known yet" if plan.corpus_tokens is None else f"{count_text(plan.corpus_tokens)} tokens"
    return f"{size}{epochs}, {plan.steps:,} steps"


def _limit(recipe: Recipe) -> str:
    budget = recipe.budget
    limits = [f"${budget.dollars:,.2f}"] if budget.dollars is not None else []
    limits += [f"{budget.hours:g} h"] if budget.hours is not None else []
    return " or ".join(limits) or NO_LIMIT


def _lost(recipe: Recipe, plan: Plan, price: float | None) -> str:
    """Say what a kill costs at most: what was done since the last checkpoint, and starting up."""
    every: Every = recipe.checkpoints.every
    seconds = every.seconds or (every.steps or 1) * plan.step_seconds
    lost = (min(seconds, plan.hours * 3600) + sum(plan.startup.values())) / 3600
    cost = "" if price is None else f", ${lost * price:,.2f}"
    return f"at most {hours_text(lost)}{cost} again (a checkpoint every {every}); windtunnel train --resume"


def _range(ends: list[float | None]) -> str:
    low, high = ends
    return f"at most {high:g}" if low is None else f"at least {low:g}" if high is None else f"{low:g} to {high:g}"


CHECKS = (
    Check(
        "plan", "the recipe fits the rigs; its hours and dollars are known",
        "choose a smaller model or a larger rig: windtunnel plan", _plan, rung="target", needs=("recipe", "rig"),
    ),
    Check(
        "budget", "the budget can be kept, and leaves room for warm-up, checkpoints and validations",
        "look at budget and checkpoints in the recipe", _budget, rung="target", needs=("recipe", "rig"),
    ),
    Check(
        "layout", "every count of ranks divides what it shares; no GPU is left over", "leave layout to the plan", layout,
        shows="start", rung="target", needs=("recipe", "rig", "plan"), applies=_splits, apart=False,
    ),
    Check(
        "questions", "what is asked before GPUs are rented has an answer: data, time, dollars, limits, failure, expectation",
        "write budget and expect into the recipe", questions, shows="end", rung="target", needs=("recipe", "rig", "plan"),
    ),
)  # fmt: skip
