"""FLOPs-matched baselines: what a recursive run is compared with.

Plain GPTs of the same parameters, of the same FLOPs and between, and the same model applied fewer times. Recipes and shapes by
arithmetic; no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from windtunnel.model import GPTShape, derive, gpt_shape, recipe_shape
from windtunnel.recipe import PRESETS, Budget, Every, GPTModel, LayoutChoice, Recipe, Recursion, Schedule, UserError

Kind = Literal["run", "plain", "recurrent"]
CLOSE = 0.03  # largest share by which the FLOPs of the twin of the same FLOPs may differ
SAME_FLOPS, WHOLE_BATCHES = "same-flops", "same-flops-whole-batches"
FEWER = 2  # models with fewer applications: three points draw the curve of recurrences
MOST_DEPTH, MOST_STRETCH = 256, 3.0  # layers that are tried, and by how much depth to width may differ from the run's
HIDDEN_RANGE = (0.6, 1.6)  # of the usual width of the MLP, beyond which a model is worse for it


@dataclass(frozen=True)
class Length:
    """What all models have in common besides data and seed: steps of the run and its tokens a step, precision.

    `ranks` are data-parallel: where batches are cut into parts, each part has whole sequences for all of them.
    """

    steps: int
    batch_tokens: int
    precision: str
    ranks: int = 1


@dataclass(frozen=True)
class Member:
    """One of the models that are compared.

    Attributes:
        name: of its folder. role: what it is, in words. recipe: how it is trained.
    """

    name: str
    kind: Kind
    role: str
    recipe: Recipe
    shape: GPTShape

    @property
    def recurrences(self) -> int:
        """Applications of each block; 1 of a plain model."""
        return self.shape.applications // self.shape.layers

    @property
    def updates(self) -> int:
        """Updates of the weights in its training."""
        return (self.recipe.budget.steps or 0) * updates_a_batch(self.recipe)


def flop_matched_members(recipe: Recipe, vocab: int, length: Length) -> tuple[Member, ...]:
    """Return the run's own model first, then the plain ones by size, then the same model with fewer applications.

    All see the same tokens and make as many updates as the run. Where that takes smaller batches than the run's, the plain
    model of the same FLOPs is there a second time, with whole batches: nobody knows before which serves it better.

    Raises:
        UserError: the model does not recurse.
    """
    if recipe.trm is None:
        raise UserError(
            f"recipe {recipe.name} trains a plain model: there is no recursion to weigh",
            "leave --flop-matched out, or train recipe trm",
        )
    base = _common(recipe, length)
    own = _member(base, vocab, "recursive", "run", "")
    own = replace(own, role=f"this run, {own.recurrences}x")
    if own.recurrences == 1:
        what = f"recipe {recipe.name} applies its blocks once: there is no recursion to weigh"
        raise UserError(what, "leave --flop-matched out")
    plain = _as_plain(base, vocab)
    once = gpt_shape(recipe.gpt, vocab)
    # In the middle on a logarithmic scale, where a power law needs its third point.
    middle = math.sqrt(once.flops_per_token * own.shape.flops_per_token)
    models = {
        "same-parameters": ("plain, same params", recipe.gpt),
        "between": ("plain, in between", matching_gpt(recipe.gpt, vocab, middle)),
        SAME_FLOPS: ("plain, same FLOPs", matching_gpt(recipe.gpt, vocab, own.shape.flops_per_token)),
    }
    parts = parts_for(base, plain, length.ranks)
    cut = in_parts(plain, parts)
    twins = [
        _member(cut.model_copy(update={"model": model}), vocab, name, "plain", role) for name, (role, model) in models.items()
    ]
    if parts > 1:
        whole = plain.model_copy(update={"model": models[SAME_FLOPS][1]})
        twins.append(_member(whole, vocab, WHOLE_BATCHES, "plain", "plain, whole batches"))
    fewer = []
    for trm in fewer_applications(recipe.trm):
        less = base.model_copy(update={"trm": trm})
        member = _member(in_parts(less, parts_for(base, less, length.ranks)), vocab, "", "recurrent", "")
        if member.recurrences > 1:
            r = member.recurrences
            fewer.append(_named(member, f"recurrence-{r}", f"applied {r}x"))
    return (own, *twins, *fewer)


def fewer_applications(trm: Recursion) -> list[Recursion]:
    """Return the same recursion halved and halved again: supervision steps first, then cycles, then loops."""
    found: list[Recursion] = []
    while len(found) < FEWER:
        # Supervision first: it is what costs most and is given up with least harm.
        halved = next((name for name in ("supervision", "cycles", "loops") if getattr(trm, name) > 1), None)
        if halved is None:
            break
        trm = trm.model_copy(update={halved: getattr(trm, halved) // 2, "inference_supervision": None})
        found.append(trm)
    return found


def matching_gpt(model: GPTModel, vocab: int, flops: float) -> GPTModel:
    """Return the plain GPT of `flops` training FLOPs a token, but for `CLOSE`, whose proportions are most like `model`'s.

    Depth and width in whole heads are searched; the MLP's width closes what is left. Where nothing is that close the
    closest is returned.
    """
    own = gpt_shape(model, vocab)
    best: tuple[float, float, GPTModel] | None = None
    for candidate, stretch in _candidates(model, own, flops):
        shape = gpt_shape(candidate, vocab)
        error = abs(shape.flops_per_token / flops - 1)
        # FLOPs come first until they are within CLOSE; from there on proportions decide too.
        key = (max(0.0, error - CLOSE), stretch + 3 * error)
        if best is None or key < best[:2]:
            best = (*key, candidate)
    assert best is not None
    return best[2]


def _candidates(model: GPTModel, own: GPTShape, flops: float) -> Iterator[tuple[GPTModel, float]]:
    """GPTs near the FLOPs, with how far their proportions are from the run's (sums of logarithms)."""
    group = own.heads // own.kv_heads
    for depth in range(1, MOST_DEPTH + 1):
        for heads in range(group, 100_000, group):
            dim = heads * own.head_dim
            # Deep and narrow or wide and shallow models learn otherwise, and not recursion would be weighed.
            stretch = abs(math.log(dim / depth / (own.dim / own.layers)))
            if stretch > math.log(MOST_STRETCH):
                if dim / depth > own.dim / own.layers:
                    break
                continue
            aspect = max(1, dim // depth)
            if math.ceil(depth * aspect / own.head_dim) != heads:  # no whole aspect gives this width
                continue
            wider = model.model_copy(update={"depth": depth, "aspect": aspect, "kv_heads": heads // group if group > 1 else None})
            shape = gpt_shape(wider, own.vocab)
            share = shape.flops_per_token / flops
            if share > 2:
                break
            if share >= 0.5:
                yield wider, stretch
                yield from _other_hidden(wider, shape, flops, stretch)


def _other_hidden(model: GPTModel, shape: GPTShape, flops: float, stretch: float) -> Iterator[tuple[GPTModel, float]]:
    each = 6.0 * (3 if shape.mlp == "swiglu" else 2) * shape.dim * shape.layers  # FLOPs of one more channel in all MLPs
    step = 64 if shape.hidden >= 1024 else 8
    hidden = round((shape.hidden + (flops - shape.flops_per_token) / each) / step) * step
    if hidden > 0 and HIDDEN_RANGE[0] <= hidden / shape.hidden <= HIDDEN_RANGE[1] and hidden != shape.hidden:
        yield model.model_copy(update={"mlp_ratio": hidden / shape.dim}), stretch + abs(math.log(hidden / shape.hidden))


def _common(recipe: Recipe, length: Length) -> Recipe:
    pretrain = recipe.pretrain.model_copy(
        update={"batch_tokens": length.batch_tokens, "precision": length.precision, "micro_batch": None}
    )
    stages = {pretrain.name: pretrain, "evaluate": recipe.evaluation.model_copy(update={"name": "evaluate"})}
    return recipe.model_copy(update={"stages": stages, "stage": None, "budget": Budget(steps=length.steps)})


def _as_plain(recipe: Recipe, vocab: int) -> Recipe:
    """Return the recipe without recursion, and at the rates that a plain recipe has where the run has its preset's.

    Muon's rate, where the run derives it, is the run's.
    """
    assert recipe.trm is not None
    preset, stage = PRESETS[recipe.trm.preset], recipe.pretrain
    own = {name: getattr(stage.optimizer, name) for name in ("matrix_lr", "embedding_lr")}
    rates: dict[str, float | None] = {
        name: None for name, value in own.items() if value is not None and value == getattr(preset, name)
    }
    if own["matrix_lr"] is None:
        # Left alone, a plain model's matrices would learn faster from small batches: what is weighed is recursion, not that.
        rates["matrix_lr"] = derive(recipe, vocab).matrix_lr.value
    schedule = stage.schedule
    if preset.warmup_steps is not None and schedule.warmup_steps == preset.warmup_steps:
        schedule = schedule.model_copy(update={"warmup_steps": Schedule().warmup_steps})
    optimizer = stage.optimizer.model_copy(update=rates)
    stage = stage.model_copy(update={"optimizer": optimizer, "schedule": schedule, "graphs": "auto"})
    # Averaged weights for all or for none: a stack looped once is the plain model.
    looped_once = Recursion(scheme="looped", preset="honest", loops=1, cycles=1, supervision=1, ema=recipe.trm.ema)
    return recipe.with_stages(pretrain=stage).model_copy(
        update={
            "trm": None if recipe.trm.ema is None else looped_once,
            "layout": LayoutChoice() if recipe.layout.recompute == "step" else recipe.layout,
        }
    )


def _member(recipe: Recipe, vocab: int, name: str, kind: Kind, role: str) -> Member:
    return _named(Member(name, kind, role, recipe, recipe_shape(recipe, vocab)), name, role)


def _named(member: Member, name: str, role: str) -> Member:
    recipe = member.recipe.model_copy(update={"name": f"{member.recipe.name}-{name}"}) if name else member.recipe
    return replace(member, name=name, role=role, recipe=recipe)


# As many updates for all. With `trm.updates: each` every batch changes the weights as often as there are supervision steps. A
# model that makes one update a batch would have a fraction of the updates for the same tokens and FLOPs, and at these lengths
# their number decides much. So its batches are cut into parts, with a step each: the same tokens in the same order.


def updates_a_batch(recipe: Recipe) -> int:
    """Return how often a batch changes the weights."""
    trm = recipe.trm
    return trm.supervision if trm is not None and trm.resolved.updates == "each" else 1


def parts_for(own: Recipe, other: Recipe, ranks: int = 1) -> int:
    """Return the parts of a batch with which `other` makes as many updates as `own`, or as near below as sequences allow.

    Each part has a whole sequence for every data-parallel rank.
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
    # As many tokens of warm-up as before.
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
