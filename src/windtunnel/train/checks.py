"""Check the GPT's optimizer and schedule, and the gates between stages: rates near what works, steps that change weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from windtunnel.check import Check, CheckFailed, Context, Evidence, Findings, Say, one_thread
from windtunnel.recipe import Gates, Recipe, stage_gates

if TYPE_CHECKING:
    from windtunnel.model import GPT


ROWS, STEPS = 4, 12
"""Sequences of the batch that the scale model is trained on, and how many steps it takes."""
LEAST_PEAK, FLAT_END = 0.5, 0.9
"""Share of the peak that the learning rate must reach; share of it at the end from which it has hardly come down."""


def _applies(context: Context) -> bool:
    return context.is_gpt and context.has_data


@one_thread()
def optimizer(context: Context, say: Say) -> Evidence:
    """Judge the rates by their rules, then take steps of the scale model with them.

    Raises:
        CheckFailed: a parameter belongs to no group of the optimizer, or to several.
    """
    import torch

    from windtunnel.model import add_gradients, derive
    from windtunnel.train import MuonAdamW, Scalars

    found = Findings()
    judge_rates(context, found)
    gpt = context.network()
    before = {name: p.detach().clone() for name, p in gpt.named_parameters()}
    stepper = MuonAdamW(gpt, derive(context.scale, gpt.shape.vocab))
    _one_group_each(gpt, [name for group in stepper.groups for name, _ in group.named])
    x, y = context.batch(ROWS)
    losses = []
    for step in range(STEPS):
        say(f"step {step + 1} of {STEPS}")
        losses.append(add_gradients(gpt, context.scale.trm, x, y))
        stepper.step(Scalars(1.0, context.recipe.pretrain.optimizer.momentum, 0.0))
    same = [name for name, p in gpt.named_parameters() if torch.equal(before[name], p.detach())]
    if same:
        found.problem(
            f"{STEPS} steps leave {', '.join(same[:3])} as it was", "raise the learning rate of it in stages.pretrain.optimizer"
        )
    if not all(map(math.isfinite, losses)) or min(losses[1:]) >= losses[0]:
        what = f"{STEPS} steps on one batch with the recipe's rates take the loss from {losses[0]:.3f} to {losses[-1]:.3f}"
        found.problem(what, "leave stages.pretrain.optimizer's rates out: they are then derived", shows="first steps")
    groups = f"{len(before)} tensors, each in one of {len(stepper.groups)} groups"
    text = f"{groups}; {STEPS} steps change all of them: loss {losses[0]:.3f} to {losses[-1]:.3f}"
    return found.evidence(text, {"tensors": len(before), "groups": len(stepper.groups), "losses": losses})


def _one_group_each(gpt: GPT, grouped: list[str]) -> None:
    names = [name for name, _ in gpt.named_parameters()]
    odd = sorted({n for n in names if grouped.count(n) != 1} | (set(grouped) - set(names)))
    if odd:
        raise CheckFailed(
            f"{', '.join(odd[:3])}: not in exactly one group of the optimizer", "report this: the package is at fault"
        )


def schedule(context: Context, say: Say) -> Evidence:
    """Follow the learning rate over the planned steps: does it reach its peak, and does it come down?"""
    from windtunnel.train import learning_rate_scale

    plan, given, found = context.plan(), context.recipe.pretrain.schedule, Findings()
    steps = max(1, plan.steps)
    shares = [learning_rate_scale(given, step, step / steps) for step in range(0, steps, max(1, steps // 2000))]
    peak, last = max(shares), learning_rate_scale(given, steps, 1.0)
    if peak < LEAST_PEAK:
        what = f"over {steps:,} steps the learning rate never passes {peak:.0%} of its peak: warm-up and warm-down meet"
        found.problem(what, "lower stages.pretrain.schedule.warmup_steps or warmdown", shows="end")
    if last > FLAT_END * peak:
        found.warn(f"the learning rate ends at {last:.0%} of its peak: the last loss will be higher than it need be")
    text = f"over {steps:,} steps: {given.warmup_steps} of warm-up to {peak:.0%} of the peak, down to {last:.0%} at the end"
    return found.evidence(text, {"steps": steps, "peak": peak, "last": last})


def _has_schedule(context: Context) -> bool:
    return context.is_gpt


# Rates and weight decay that a recipe gives, against what the rules derive.

FAR, TOO_FAR = 4.0, 30.0
"""Times the derived learning rate, either way, from which it is told and refused."""
DECAY_FAR = 4.0
MOST_DECAY = 0.1
"""Share of a weight that one step may take off."""
_RATES = ("matrix_lr", "embedding_lr", "unembedding_lr", "scalar_lr")


def judge_rates(context: Context, found: Findings) -> None:
    """Judge the rates and the weight decay that the recipe gives by what the rules derive; add to `found`."""
    from windtunnel.model import derive

    given = context.recipe.pretrain.optimizer
    resolved = context.resolved
    # The same stage without the recipe's own rates: what the rules would take in their place.
    pretrain = resolved.pretrain.model_copy(update={"optimizer": type(given)()})
    free = resolved.with_stages(pretrain=pretrain)
    rules = derive(free, context.prepared.tokenizer.vocab)
    for name in _RATES:
        value, rule = getattr(given, name), getattr(rules, name).value
        if value is not None:
            judge_rate(f"stages.pretrain.optimizer.{name}", value, rule, found)
    decay, rule = given.weight_decay, rules.weight_decay.value
    if decay is None:
        return
    rate = given.matrix_lr if given.matrix_lr is not None else rules.matrix_lr.value
    if decay * rate >= MOST_DECAY:
        key = f"stages.pretrain.optimizer.weight_decay {decay:g}"
        what = f"{key}: at a learning rate of {rate:g} it takes {decay * rate:.0%} off the matrices a step"
        found.problem(what, f"about {rule:.2g} is usual", shows="first steps")
    elif decay > DECAY_FAR * max(rule, 0.01):
        found.warn(f"stages.pretrain.optimizer.weight_decay {decay:g}: the rule gives {rule:.2g}")


def judge_rate(key: str, value: float, rule: float, found: Findings) -> None:
    """Judge a learning rate by the one that is known to work; add a warning or a problem to `found`.

    Args:
        key: of the recipe, as it is told.
        value: what the recipe gives.
        rule: what is known to work, above 0.
        found: the check's findings.
    """
    times = value / rule
    if max(times, 1 / times) > TOO_FAR:
        what = f"{key} {value:g} is {times:.2g} times the {rule:.2g} that is known to work"
        found.problem(what, f"--set {key}=null", shows="first steps" if times > 1 else "end")
    elif max(times, 1 / times) > FAR:
        found.warn(f"{key} {value:g} is {times:.2g} times the {rule:.2g} that is known to work")


# Gates between stages: each can be judged by what the stage's run will have logged.

MOST = 100.0
"""Percent: no refinement is above it."""


def _has_stages(context: Context) -> bool:
    return context.loaded.staged


def gates(context: Context, say: Say) -> Evidence:
    """Judge each stage's gates on the metrics that a run of the planned length has."""
    found, parts, facts = Findings(), [], {}
    plans = context.plans()
    for number, (stage, recipe, plan) in enumerate(zip(context.loaded.training, context.stages, plans, strict=True)):
        last = number + 1 == len(plans)
        if stage.gates is None:
            if not last:
                found.warn(f"stage {stage.name} has no gates: whatever comes of it, the next one spends its budget")
            continue
        asked = _judge(stage.name, stage.gates, recipe, (plan.steps, plan.vocab), context, found)
        facts[stage.name] = asked
        if not asked and not last:
            found.warn(f"stage {stage.name}: its gates ask for nothing")
        listed = ", ".join(f"{name.replace('_', ' ')} {limit}" for name, limit in asked.items())
        parts.append(f"after stage {stage.name}: {listed or 'nothing'}")
    evaluation = context.loaded.evaluation
    ended = stage_gates(context.loaded, gpus=context.rig.gpu is not None).get(evaluation.name or "evaluate", {})
    if ended:
        facts[evaluation.name or "evaluate"] = ended
        parts.append(f"of the evaluation: {', '.join(f'{name} {limit}' for name, limit in ended.items())}")
    return found.evidence("; ".join(parts) or "no stage has gates", {"gates": facts}, blocks=False)


def _judge(
    name: str, asked: Gates, recipe: Recipe, planned: tuple[int, int], context: Context, found: Findings
) -> dict[str, str]:
    """Return the limit of each gate that is asked for; add to `found` those that cannot be judged or never hold.

    Args:
        name: of the stage.
        asked: its gates.
        recipe: the stage's own.
        planned: steps of its run, tokens of the vocabulary.
        context: says whether there are GPUs.
        found: the check's findings.
    """
    from .gates import judge_gates

    fix = f"change gates of stage {name} in the recipe, or give it a longer budget"
    if isinstance(asked.refinement, float) and asked.refinement >= MOST:
        found.problem(f"stage {name}: a refinement of {asked.refinement:g} % is more than a loss can fall by", fix, shows="end")
    if asked.order and recipe.supervision == 1:
        found.warn(f"stage {name}: with trm.supervision=1 neither order nor refinement can be asked for")
    results = judge_gates(asked, recipe, _metrics(recipe, *planned), gpus=context.rig.gpu is not None)
    for result in results:
        if result.value is None:
            what = f"stage {name}: gate {result.name} cannot be judged after {planned[0]:,} steps: {result.measured}"
            found.problem(what, fix, shows="end")
    return {result.name: result.limit for result in results}


def _metrics(recipe: Recipe, end: int, vocab: int) -> dict[str, Any]:
    """Make up what a good run of `end` steps logs: the loss falls, each supervision step is below the one before."""
    from windtunnel.run import Point, of_step

    steps = range(1, end + 1)
    stage = recipe.training[0]
    interval, answers = getattr(stage, "validate_every", None), getattr(stage, "answers", None)
    every = interval.steps if interval is not None else None
    # As a run validates: at its interval and at the end.
    validated = sorted({*range(every or end, end + 1, every or end), *([end] if end else [])})
    start = math.log(vocab)

    def series(numbers: Any, value: float) -> list[Any]:
        return [Point(step=step, value=value * (1 - 0.5 * step / end), time=0.0) for step in numbers]

    steps_of = range(recipe.supervision)
    by_step = {of_step("validation_loss", i): series(validated, start * (1 - 0.1 * i)) for i in steps_of}
    if interval is not None:
        by_step["validation_loss"] = series(validated, start)
    if answers is not None and answers.every is not None:
        by_step["answers_right"] = series(validated, 1.0)
    return by_step | {
        "loss": series(steps, start),
        "gradient_norm": series(steps, 1.0),
        "refinement": series(steps, 50.0),
        "gpu_utilisation": series(steps, 100.0),
    }


CHECKS = (
    Check(
        "optimizer", "its rates are near what works; a step changes every trained weight, no other",
        "leave the rates to the rules", optimizer,
        shows="first steps", needs=("recipe", "torch", "data", "model"), applies=_applies, limit=120.0,
    ),
    Check(
        "schedule", "the learning rate reaches its peak and falls within the planned steps", "look at stages.pretrain.schedule",
        schedule, shows="end", rung="target", needs=("recipe", "rig", "plan", "torch"), applies=_has_schedule,
    ),
    Check(
        "gates", "the gates between stages can be judged by what each stage's run logs", "look at stages in the recipe", gates,
        shows="end", rung="target", needs=("recipe", "rig", "plan"), applies=_has_stages, apart=False,
    ),
)  # fmt: skip
