"""Learning rates and weight decay that a recipe gives, against what the rules derive."""

from __future__ import annotations

from .context import Context
from .types import Findings

FAR, TOO_FAR = 4.0, 30.0
"""Times the derived learning rate, either way, from which it is told and refused."""
DECAY_FAR = 4.0
MOST_DECAY = 0.1
"""Share of a weight that one step may take off."""
_RATES = ("matrix_lr", "embedding_lr", "unembedding_lr", "scalar_lr")


def judge_rates(context: Context, found: Findings) -> None:
    """Rates that the recipe gives against what the rules derive."""
    from windtunnel.model import derive

    given = context.recipe.pretrain.optimizer
    resolved = context.resolved
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
    times = value / rule
    if max(times, 1 / times) > TOO_FAR:
        what = f"{key} {value:g} is {times:.2g} times the {rule:.2g} that is known to work"
        found.problem(what, f"--set {key}=null", shows="first steps" if times > 1 else "end")
    elif max(times, 1 / times) > FAR:
        found.warn(f"{key} {value:g} is {times:.2g} times the {rule:.2g} that is known to work")
