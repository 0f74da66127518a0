"""What makes two recipes the same training: those keys must agree to resume; the others may change."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

from windtunnel.recipe import FILE_LISTS, Recipe

_WHOLE = ("name", "seed", "model", "trm", "data")
# How a trained model is used may change.
_USE = "inference_supervision"
_PRETRAIN = ("batch_tokens", "precision", "optimizer", "schedule")
# Left out are kernels, micro-batches and intervals, which do not decide what is learned, and rates, which a person may lower.
_SFT = ("batch_tokens", "precision", "states", "master", "schedule")
_RL = (
    "prompts", "samples", "prompt_tokens", "answer_tokens", "temperature", "updates", "advantages", "scale", "loss", "clip",
    "clip_higher", "kl", "reference", "mismatch", "mismatch_cap", "mismatch_band", "mask_truncated", "equal_rewards",
    "resamples", "rewards", "reward", "states", "master", "schedule",
)  # fmt: skip
# Of the optimizer these may change, so that a run can go on with lower rates; null keeps the run's own.
RATES = ("matrix_lr", "embedding_lr", "unembedding_lr", "scalar_lr", "weight_decay", "clip")
_OFTEN = "how often to validate and save"
MAY_CHANGE = f"budget, checkpoints, bands, {_OFTEN}, of the optimizer {', '.join(RATES)}, and when fine-tuning learning_rate"


def identity(recipe: Recipe, *, rates: bool) -> dict[str, Any]:
    """Return the identity keys of a recipe and their values, by dotted path; `rates`: with those of the optimizer."""
    dump = recipe.model_dump(mode="json")
    # The same files named from another folder are the same data; whether their content is, their checksum tells.
    keys = {name: _located(dump[name]) for name in _WHOLE}
    if recipe.trm is not None:
        # Presets spelled out: what a section leaves to its preset is not left open. No averaging is a choice too.
        trm = asdict(recipe.trm.resolved)
        keys["trm"] = {name: value for name, value in trm.items() if name != _USE} | {"ema": recipe.trm.ema or 0.0}
    for stage, names in ((recipe.pretrain, _PRETRAIN), (recipe.sft, _SFT), (recipe.rl, _RL)):
        if stage is not None and stage.name:
            located = _located(dump["stages"][stage.name])
            keys.setdefault("stages", {})[stage.name] = {name: located[name] for name in names}
    flat = by_path(keys)
    if not rates:
        flat = {k: value for k, value in flat.items() if not (".optimizer." in k and k.rpartition(".")[2] in RATES)}
    return flat


def differences(run: Recipe, asked: Recipe, *, rates: bool = False) -> list[tuple[str, Any, Any]]:
    """Return the identity keys that differ: path, value in the run, value asked for.

    A run may go on with other rates; with `rates` these count too: whether it is the very training that is asked for.

    A key that the asked recipe leaves to be derived (null or 'auto') agrees with whatever the run derived.
    """
    have, want = identity(run, rates=rates), identity(asked, rates=rates)
    found = []
    for key in [*have, *(k for k in want if k not in have)]:
        left, right = have.get(key), want.get(key)
        # The run's recipe is as it was resolved; the one asked for need not say what follows by rule.
        if left != right and not (right in (None, "auto") and key in want):
            found.append((key, left, right))
    return found


def first_difference(run: Recipe, asked: Recipe) -> tuple[str, Any, Any] | None:
    """Return the first key in which two trainings differ, rates included, or None."""
    return next(iter(differences(run, asked, rates=True)), None)


def changes(run: Recipe, resumed_as: Recipe) -> list[str]:
    """Return what a run goes on with that it did not begin with, as 'key: old -> new'."""
    old, new = (by_path(recipe.model_dump(mode="json")) for recipe in (run, resumed_as))
    # An empty section says nothing: its keys, where it had some, have lines of their own.
    return [
        f"{key}: {_text(old.get(key))} -> {_text(value)}" for key, value in new.items() if value != {} and old.get(key) != value
    ]


def resumed(run: Recipe, asked: Recipe) -> Recipe:
    """Return the asked recipe's budget, checkpoints, bands, rates and the like with the run's identity keys."""
    # What was expected was written before the run.
    update = {**{k: getattr(run, k) for k in _WHOLE}, "stage": run.stage, "expect": run.expect}
    update["budget"] = asked.budget.model_copy(update={"replaced": {}})  # what gave way to it is no part of what it is
    if run.trm is not None and asked.trm is not None:
        update["trm"] = run.trm.model_copy(update={_USE: asked.trm.inference_supervision})
    if asked.pretrain.name:
        kept = {k: getattr(run.pretrain, k) for k in _PRETRAIN}
        given = {name: getattr(asked.pretrain.optimizer, name) for name in RATES}
        kept["optimizer"] = kept["optimizer"].model_copy(update={k: value for k, value in given.items() if value is not None})
        asked = asked.with_stages(pretrain=asked.pretrain.model_copy(update=kept))
    if asked.sft is not None and run.sft is not None:
        asked = asked.with_stages(sft=asked.sft.model_copy(update={k: getattr(run.sft, k) for k in _SFT}))
    if asked.rl is not None and run.rl is not None:
        asked = asked.with_stages(rl=asked.rl.model_copy(update={k: getattr(run.rl, k) for k in _RL}))
    return asked.model_copy(update=update)


def anchored(recipe: Recipe) -> Recipe:
    """Return the recipe with the places of its files made absolute, so that its run can be used from any folder."""
    parts = {name: getattr(recipe, name) for name in ("data", "model")}
    dumps = {name: part.model_dump(mode="json") for name, part in parts.items()}
    moved = {name: type(parts[name]).model_validate(_located(dump)) for name, dump in dumps.items() if _located(dump) != dump}
    stages = {name: _anchored_stage(stage) for name, stage in recipe.stages.items()}
    if any(stages[name] is not stage for name, stage in recipe.stages.items()):
        moved["stages"] = stages
    return recipe.model_copy(update=moved) if moved else recipe


def _anchored_stage(stage: Any) -> Any:
    """Return a stage with the places of its rewards' files made absolute."""
    dump = stage.model_dump(mode="json")
    # Only what changed is replaced: a copy of every section would be validated for nothing.
    located = _located(dump)
    if located == dump:
        return stage
    update = {key: located[key] for key in ("reward", "reward_examples") if key in dump}
    if "rewards" in dump:
        functions = [source["function"] for source in located["rewards"]]
        update["rewards"] = [
            source.model_copy(update={"function": function}) for source, function in zip(stage.rewards, functions, strict=True)
        ]
    if isinstance(dump.get("answers"), dict) and "metric" in dump["answers"]:
        update["answers"] = stage.answers.model_copy(update={"metric": located["answers"]["metric"]})
    return stage.model_copy(update=update)


def by_path(value: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by dotted path; an empty mapping is a leaf."""
    if not isinstance(value, dict) or not value:
        return {path: value}
    found: dict[str, Any] = {}
    for key, item in value.items():
        found |= by_path(item, f"{path}.{key}" if path else str(key))
    return found


def _located(value: Any) -> Any:
    """Return a section with absolute paths: of files; of a tokenizer, a model and a reward where there is such a one."""
    if isinstance(value, list):
        return [_located(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: _located(item) for key, item in value.items()}
    for key in FILE_LISTS:
        if isinstance(found.get(key), list):
            found[key] = [os.path.abspath(file) for file in found[key]]
    for key in ("path", "config", "reward_examples"):
        if isinstance(found.get(key), str) and os.path.exists(found[key]):
            found[key] = os.path.abspath(found[key])
    for key in ("reward", "function", "metric"):  # 'file.py:function'
        file, colon, function = str(found.get(key) or "").rpartition(":")
        if colon and os.path.exists(file):
            found[key] = f"{os.path.abspath(file)}:{function}"
    return found


def _text(value: Any) -> str:
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
