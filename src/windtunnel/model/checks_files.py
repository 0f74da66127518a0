"""Check the files of the model that a recipe begins with: there, and whole, before a GPU waits for them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from windtunnel.check import Check, Context, Evidence, Findings, Say, trains_elsewhere
from windtunnel.recipe import HuggingFaceModel, MissingModel, TrainingStage, UserError

from .base import RANDOM_BASE, adapts_random_weights
from .fetch import require_weights, verify_model, weights_folder
from .known import cut_off, hf_shape


def model_files(context: Context, say: Say) -> Evidence:
    """Look at every folder of weights that a stage begins with: presence, sizes and headers against the index."""
    found, seen, facts, missing = Findings(), list[str](), dict[str, Any](), list[MissingModel]()
    for name in _named(context):
        say(name)
        try:
            require_weights(name)
        except MissingModel as error:
            # On a laptop, before the rented machine has it: no fault, but something that is still to come.
            if trains_elsewhere(context):
                missing.append(error)
                seen.append(_expected(name))
            else:
                found.problem(error.message, error.fix)
            continue
        except UserError as error:
            found.problem(error.message, error.fix)
            continue
        folder = weights_folder(name)
        if folder is None:
            found.warn(f"{name} has no weights: training would begin with random ones")
            seen.append(f"{name}: a shape without weights")
        else:
            facts[name] = {"folder": str(folder), "bytes": verify_model(folder)}
            seen.append(f"{folder}: {facts[name]['bytes'] / 1e9:,.2f} GB of weights, whole by index, sizes and headers")
    if not missing and any(adapts_random_weights(recipe) for recipe in context.stages):
        found.warn(RANDOM_BASE)
    evidence = found.evidence("; ".join(seen) or "random weights: no files are read", facts, blocks=False)
    if not missing:
        return evidence
    fixes, lacks = "; ".join(error.fix or "" for error in missing), [error.lacks for error in missing]
    return Evidence(evidence.text, evidence.facts, evidence.warnings, absent=fixes, lacks=lacks)


def _expected(name: str) -> str:
    """Say how much of a model that is not here is to come."""
    # A fetch that was cut off goes on where it ended, and has taken room already.
    cut = cut_off(name)
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    here = "and a fetch that was cut off" if cut else "and nothing of it"
    return f"{name}: {hf_shape(name).published_bytes / 1e9:,.2f} GB, {here} on this machine, which has {free:,.1f} GB free"


def _named(context: Context) -> list[str]:
    """Return what the stages begin with, as the recipe names it; runs and earlier stages are not files of a model."""
    names = []
    for recipe in context.stages:
        model, stage = recipe.model, recipe.training[0]
        if isinstance(model, HuggingFaceModel) and isinstance(stage, TrainingStage):
            given = stage.init_from
            names += [model.config] if given is None else [given] if _is_model(given) else []
    return list(dict.fromkeys(names))


def _is_model(given: str) -> bool:
    """Return whether a stage's init_from is a folder of weights or a fetched model, rather than a run or an earlier stage."""
    if given in ("random", "previous"):
        return False
    folder = Path(given).expanduser()
    return not (folder / "manifest.json").exists() if folder.is_dir() else weights_folder(given) is not None


def _begins_with_files(context: Context) -> bool:
    return isinstance(context.recipe.model, HuggingFaceModel)


CHECKS = (
    Check(
        "model-files", "the model's files are all here and whole: nothing missing, cut off, or a pointer in its place",
        "windtunnel fetch OWNER/NAME", model_files, needs=("recipe",), applies=_begins_with_files, limit=300.0,
    ),
)  # fmt: skip
