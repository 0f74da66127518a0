"""Hyper-parameters derived from depth by stated rules; no torch.

The reference is depth 12 at a batch of 2^19 tokens, where the constants were tuned by
nanochat (karpathy/nanochat, scripts/base_train.py, July 2026). Each value carries its rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from windtunnel.recipe import PRESETS, Recipe

from .shape import GPTShape, gpt_shape, recipe_shape

REFERENCE_DEPTH = 12
REFERENCE_BATCH = 2**19
REFERENCE_DIM = 768
REFERENCE_DECAY = 0.28
# A small corpus cannot feed half a million tokens a step: keep at least this many steps.
LEAST_STEPS = 200


@dataclass(frozen=True)
class Derived:
    """One value with the rule it came from."""

    value: float
    rule: str


@dataclass(frozen=True)
class HyperParameters:
    """What the trainer runs with. Learning rates are peaks; tokens are the compute-optimal length."""

    tokens: Derived
    batch_tokens: Derived
    matrix_lr: Derived
    embedding_lr: Derived
    unembedding_lr: Derived
    scalar_lr: Derived
    weight_decay: Derived

    def rows(self) -> list[tuple[str, float, str]]:
        """Return (name, value, rule) of each, for printing."""
        return [(name, d.value, d.rule) for name, d in vars(self).items()]


def derive(recipe: Recipe, vocab: int) -> HyperParameters:
    """Derive batch, learning rates, weight decay and tokens for a recipe whose depth is resolved."""
    shape = recipe_shape(recipe, vocab)
    reference = gpt_shape(recipe.gpt.model_copy(update={"depth": REFERENCE_DEPTH, "kv_heads": None}), vocab)
    stage, given = recipe.pretrain, recipe.pretrain.optimizer
    # Of the reference model as well: the rules compare lengths of training, which the ratio stretches for both.
    ratio = stage.tokens_per_parameter
    tokens = ratio * shape.scaling_parameters
    batch = _batch(recipe, tokens, ratio * reference.scaling_parameters, shape)
    batch_scale = math.sqrt(batch.value / REFERENCE_BATCH)
    width_scale = math.sqrt(REFERENCE_DIM / shape.dim)
    width_rule = f"x sqrt(768/{shape.dim}) x sqrt(B/2^19)"

    preset = PRESETS[recipe.trm.preset] if recipe.trm is not None else None
    # An update of Muon is as large whatever the gradient's noise. At 1 Ki to 256 Ki tokens a step and depths 4 to 12, 0.02 was
    # better than what sqrt(B/2^19) makes of it (docs/quality.md); models that recurse were not measured so, and keep that.
    recurs = shape.applications > shape.layers
    matrices = (batch_scale, "0.02 x sqrt(B/2^19), Muon") if recurs else (1.0, "0.02, Muon, whatever the batch")

    def rate(value: float | None, base: float, scale: float, rule: str, own: float | None = None) -> Derived:
        if value is None:
            return Derived(base * scale, rule)
        return Derived(value, f"preset {recipe.trm.preset}" if recipe.trm is not None and value == own else "recipe")

    decay = REFERENCE_DECAY * batch_scale * ratio * reference.scaling_parameters / tokens
    # AdamW's time-scale argument holds near the reference; far below it the rule would decay weights away.
    decay = min(decay, 2 * REFERENCE_DECAY)
    return HyperParameters(
        tokens=Derived(tokens, f"{ratio:g} x {shape.scaling_parameters:,} scaling parameters (tokens_per_parameter)"),
        batch_tokens=batch,
        matrix_lr=rate(given.matrix_lr, 0.02, *matrices, preset.matrix_lr if preset else None),
        embedding_lr=rate(
            given.embedding_lr, 0.3, batch_scale * width_scale, f"0.3 {width_rule}", preset.embedding_lr if preset else None
        ),
        unembedding_lr=rate(given.unembedding_lr, 0.008, batch_scale * width_scale, f"0.008 {width_rule}"),
        scalar_lr=rate(given.scalar_lr, 0.5, batch_scale, "0.5 x sqrt(B/2^19)"),
        weight_decay=rate(given.weight_decay, decay, 1.0, "0.28 x sqrt(B/2^19) x D_12/D (arXiv:2405.13698), at most 0.56"),
    )


def _batch(recipe: Recipe, tokens: float, reference_tokens: float, shape: GPTShape) -> Derived:
    given = recipe.pretrain.batch_tokens
    if given is not None:
        whole = max(1, round(given / shape.sequence)) * shape.sequence
        return Derived(whole, "recipe" if whole == given else f"recipe's {given:,}, to whole sequences of {shape.sequence:,}")
    optimal = REFERENCE_BATCH * (tokens / reference_tokens) ** 0.383
    power = 2 ** round(math.log2(optimal))
    rule = "2^19 x (D/D_12)^0.383 to a power of two (arXiv:2505.13738)"
    # With few tokens a large batch would leave too few steps to learn anything.
    limit = recipe.budget.tokens or tokens
    if recipe.budget.steps is None and power > limit / LEAST_STEPS:
        power = 2 ** int(math.log2(max(1.0, limit / LEAST_STEPS)))
        rule += f", at most tokens/{LEAST_STEPS}"
    return Derived(max(power, shape.sequence), rule)
