"""As many updates for all: where a run updates its weights several times a batch, others get smaller batches.

With `trm.updates: each` every batch changes the weights as often as there are supervision steps. A model that makes one
update a batch would have a fraction of the updates for the same tokens and FLOPs, and at these lengths their number decides
much. So its batches are cut into parts, with a step each: the same tokens in the same order, as many updates.
"""

from __future__ import annotations

from windtunnel.recipe import Budget, Every, Recipe


def updates_a_batch(recipe: Recipe) -> int:
    """Return how often a batch changes the weights."""
    trm = recipe.trm
    return trm.supervision if trm is not None and trm.resolved.updates == "each" else 1


def updates_of(recipe: Recipe) -> int:
    """Return how many updates a training has whose length is a number of steps."""
    return (recipe.budget.steps or 0) * updates_a_batch(recipe)


def parts_for(own: Recipe, other: Recipe, ranks: int = 1) -> int:
    """Return the parts of a batch with which `other` makes as many updates as `own`, or as near below as sequences allow.

    Args:
        own: recipe whose number of updates is to be reached.
        other: recipe whose batches are cut.
        ranks: data-parallel ranks; each part has a sequence for every one of them.
    """
    batch, sequence = own.pretrain.batch_tokens or 0, own.gpt.sequence
    rows, rest = divmod(batch, sequence * ranks)
    wanted = updates_a_batch(own) // updates_a_batch(other)
    if rest or rows < 1:
        return 1
    return max(parts for parts in range(1, max(1, wanted) + 1) if rows % parts == 0)


def in_parts(recipe: Recipe, parts: int) -> Recipe:
    """Return the recipe with every batch cut into `parts`; what is counted in steps is counted in as many more."""
    if parts == 1:
        return recipe
    stage = recipe.pretrain
    schedule = stage.schedule.model_copy(update={"warmup_steps": stage.schedule.warmup_steps * parts})
    stage = stage.model_copy(
        update={
            "batch_tokens": (stage.batch_tokens or 0) // parts,
            "schedule": schedule,
            "validate_every": _times(stage.validate_every, parts),
        }
    )
    return recipe.with_stages(pretrain=stage).model_copy(
        update={
            "budget": Budget(steps=(recipe.budget.steps or 0) * parts),
            "checkpoints": recipe.checkpoints.model_copy(update={"every": _times(recipe.checkpoints.every, parts)}),
        }
    )


def _times(every: Every, parts: int) -> Every:
    return every if every.steps is None else Every(steps=every.steps * parts)
