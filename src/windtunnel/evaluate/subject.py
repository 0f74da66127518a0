"""What is evaluated of Hugging Face models: a run or a folder, with the data, and the model before tuning beside it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch

from windtunnel.checkpoint import Which
from windtunnel.data import Folder, PreparedData, Tokenizer, add_tokens, prepare
from windtunnel.generate import HubDecoder, HubRun, find_device, folder_decoder, run_decoder
from windtunnel.model import NewRows, base_weights
from windtunnel.recipe import FolderTokenizer, HuggingFaceModel, Recipe, UserError

from .held_out import require_data

Open = Callable[[], AbstractContextManager[HubDecoder]]  # opens a model, of which one at a time is in memory


@dataclass(frozen=True)
class Subject:
    """What is evaluated.

    Attributes:
        recipe: gives data, metric and numbers.
        open: opens the model. untuned: likewise the model before tuning, and in words where it is from; None: not to be had.
        step: of a run's checkpoint; None: the weights of a folder.
        weights: what tells the weights of both models from others, for predictions that are gone on with.
        substitute: the checkpoint that was asked for is damaged, and this is another one.
    """

    name: str
    recipe: Recipe
    data: PreparedData
    open: Open
    untuned: tuple[Open, str] | None
    device: torch.device
    step: int | None = None
    warnings: tuple[str, ...] = ()
    weights: tuple[str, str] = ("", "")
    substitute: bool = False


def run_subject(run: Path, checkpoint: Which, device: str | None, prepared: PreparedData | None, *, untuned: bool) -> Subject:
    """Return a run's checkpoint with the weights that its stage began with. Raises UserError."""
    where = find_device(device)
    hub = HubRun.open(run, checkpoint, "to evaluate")
    recipe, warnings = hub.run.recipe, hub.warnings
    data = prepared or prepare(recipe)
    require_data(hub.run, data)
    before, why = (None, "") if not untuned else _before(hub, where)
    if why:
        warnings += (f"no comparison with the untuned model: {why}",)
    weights = f"{hub.checkpoint.step} {hub.checkpoint.created}", "" if before is None else before[1]
    return Subject(
        run.resolve().name, recipe, data, lambda: run_decoder(hub, where), before, where, hub.checkpoint.step, warnings, weights,
        bool(hub.warnings),
    )  # fmt: skip


def folder_subject(folder: Path, recipe: Recipe, device: str | None, *, untuned: bool) -> Subject:
    """Return the model of a Hugging Face folder on a recipe's data, and the recipe's own model as the untuned one.

    Raises:
        UserError: the folder's tokenizer is not the one that the data are made with.
    """
    where, model = find_device(device), recipe.model
    if not isinstance(model, HuggingFaceModel):
        raise UserError(f"recipe {recipe.name} is of a model of kind gpt, and {folder} is a Hugging Face folder", "name another")
    began = base_weights(recipe)
    sft = recipe.sft
    # The folder's tokenizer and template make the data, and the weights are read from there too.
    here = recipe.model_copy(update={"model": model.model_copy(update={"config": str(folder)})})
    if sft is not None:
        here = here.with_stages(sft=sft.model_copy(update={"init_from": None}))
    data = prepare(here)
    tokenizer = Folder.from_folder(folder, "FOLDER")
    if tokenizer.pieces != data.tokenizer.pieces:
        raise UserError(
            f"{folder} has another tokenizer than the one that data.tokenizer names",
            "leave data.tokenizer.path out, so that it is the folder's: --set data.tokenizer={kind: folder}",
        )
    before: tuple[Open, str] | None = None
    warnings: tuple[str, ...] = ()
    if untuned and began is not None and began.resolve() != folder.resolve():
        before = _base(began, _rows_of_others(began, tokenizer, recipe), where)
    elif untuned:
        warnings = ("no comparison with an untuned model: the recipe's model.config names none, or this very folder",)
    weights = stamp(folder), "" if began is None else stamp(began)
    name = folder.resolve().name
    return Subject(name, here, data, lambda: folder_decoder(folder, where), before, where, None, warnings, weights)


def _before(hub: HubRun, where: torch.device) -> tuple[tuple[Open, str] | None, str]:
    """Return what opens the weights that a run began with, or why they are not to be had."""
    init = hub.run.manifest.get("init")
    try:
        if init:
            first = HubRun.open(Path(init["run"]), int(init["step"]), "to compare with")
            return (lambda: run_decoder(first, where), f"{init['run']}, step {init['step']:,}"), ""
        base = base_weights(hub.run.recipe)
    except UserError as error:
        return None, error.message
    if base is None:
        return None, "the run began with random weights"
    return _base(base, NewRows.of(hub.tokenizer), where), ""


def _base(folder: Path, new: NewRows | None, where: torch.device) -> tuple[Open, str]:
    """Return what opens a folder's weights, with the rows that training begins with for new tokens."""
    return (lambda: folder_decoder(folder, where, new=new)), str(folder)


def _rows_of_others(folder: Path, tokenizer: Tokenizer, recipe: Recipe) -> NewRows | None:
    """Return the first rows of the tokens that a tokenizer has and the one in a folder lacks; None where it lacks none."""
    wanted = recipe.data.tokenizer
    if not isinstance(tokenizer, Folder) or not isinstance(wanted, FolderTokenizer) or not (folder / "tokenizer.json").is_file():
        return None
    own = Folder.from_folder(folder, "model.config")
    # By id, as they were added: rows lie one behind the other in that order.
    others = sorted(tokenizer.ids.keys() - own.ids.keys(), key=lambda text: tokenizer.ids[text])
    return NewRows.of(add_tokens(own, others, wanted.begin))


def stamp(folder: Path) -> str:
    """Return what changes when a folder's weights do."""
    # By size and time: hashing gigabytes to find that nothing changed would take minutes.
    files = sorted(folder.glob("*.safetensors"))
    return " ".join([str(folder.resolve()), *(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files)])
