"""What makes two recipes the same training: those keys must agree to resume; the others may change."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from windtunnel.recipe import Recipe

_WHOLE = ("name", "seed", "model", "trm", "data")
# How a trained model is used may change.
_USE = "inference_supervision"
_PRETRAIN = ("batch_tokens", "precision", "optimizer", "schedule")


def identity(recipe: Recipe) -> dict[str, Any]:
    """The identity keys of a recipe and their values, by dotted path."""
    dump = recipe.model_dump(mode="json")
    keys = {name: dump[name] for name in _WHOLE}
    if recipe.trm is not None:
        # Presets spelled out: what a section leaves to its preset is not left open. No averaging is a choice too.
        trm = asdict(recipe.trm.resolved)
        keys["trm"] = {name: value for name, value in trm.items() if name != _USE} | {"ema": recipe.trm.ema or 0.0}
    stage = recipe.pretrain
    if stage.name:
        keys["stages"] = {stage.name: {name: dump["stages"][stage.name][name] for name in _PRETRAIN}}
    return dict(_flatten(keys, ""))


def first_difference(run: Recipe, asked: Recipe) -> tuple[str, Any, Any] | None:
    """The first identity key (path, value in the run, value asked for) that differs.

    A key that the asked recipe leaves to be derived (null or 'auto') agrees with whatever the run derived.
    """
    have, want = identity(run), identity(asked)
    for key in [*have, *(k for k in want if k not in have)]:
        left, right = have.get(key), want.get(key)
        if left != right and not (right in (None, "auto") and key in want):
            return key, left, right
    return None


def resumed(run: Recipe, asked: Recipe) -> Recipe:
    """The asked recipe's budget, checkpoints, bands and the like with the run's identity keys."""
    update = {**{k: getattr(run, k) for k in _WHOLE}, "stage": run.stage}
    if run.trm is not None and asked.trm is not None:
        update["trm"] = run.trm.model_copy(update={_USE: asked.trm.inference_supervision})
    if asked.pretrain.name:
        asked = asked.with_stages(pretrain=asked.pretrain.model_copy(update={k: getattr(run.pretrain, k) for k in _PRETRAIN}))
    return asked.model_copy(update=update)


def _flatten(value: dict[str, Any], prefix: str) -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, item in value.items():
        flat += _flatten(item, f"{prefix}{key}.") if isinstance(item, dict) else [(f"{prefix}{key}", item)]
    return flat
