"""Models built in by name: their dimensions lie in configs/*.json, so that no network is needed; no torch."""

from __future__ import annotations

import difflib
import json
import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from windtunnel.recipe import MissingModel, UserError, find_model, is_folder_name, model_folder, near_folders

from .hf import HFShape
from .hf_blocks import shape_from_config
from .hf_config import read_config


def known_models() -> list[str]:
    """Return the names of the built-in models, other spellings left out."""
    return sorted(_names())


@cache
def _names() -> dict[str, list[str]]:
    """Name -> Hugging Face ids and aliases of models with the same shape."""
    names: dict[str, list[str]] = json.loads(_folder().joinpath("names.json").read_text(encoding="utf-8"))
    return names


@cache
def _spellings() -> dict[str, str]:
    """Return a mapping of every accepted spelling, in lower case, to the name; an id is accepted without its owner too."""
    # Whole ids last, so that they win over another model's name without its owner.
    whole = {spelling.lower(): name for name, others in _names().items() for spelling in (name, *others)}
    return {spelling.rsplit("/", 1)[-1]: name for spelling, name in whole.items()} | whole


def hub_id(name: str) -> str | None:
    """Return the id on the hub of a model: itself if it is one, or that of a built-in name, of several the base model's."""
    wanted = name.strip().lower()
    if wanted not in _spellings():
        return name.strip() if re.fullmatch(r"[\w.-]+/[\w.-]+", name.strip()) else None
    ids = [other for other in _names()[_spellings()[wanted]] if "/" in other]
    spelt = [one for one in ids if wanted in (one.lower(), one.lower().rsplit("/", 1)[-1]) and wanted not in _names()]
    return next(iter(spelt or ids), None)


def _folder() -> Any:
    return resources.files("windtunnel.model").joinpath("configs")


@cache
def _built_in(name: str) -> HFShape:
    config = json.loads(_folder().joinpath(f"{name}.json").read_text(encoding="utf-8"))
    return shape_from_config(name, config, f"built-in {name}")


def hf_shape(config: str, base: Path | None = None) -> HFShape:
    """Return the shape of a Hugging Face causal language model.

    Args:
        config: a built-in name (qwen2.5-7b), the id of one on Hugging Face (Qwen/Qwen2.5-7B), the name of a model that was
            fetched, a config.json, or a folder with one. A file or folder that is named with a slash or as .json is
            preferred over an id spelt alike.
        base: what relative paths start from; None for the working directory.

    Raises:
        UserError: unknown name, with the nearest ones; a file that cannot be read; an architecture that is not supported; a
            key that is missing or impossible.
    """
    path = (base or Path()) / config
    if config.startswith("~"):
        path = Path(config).expanduser()
    name = _spellings().get(config.strip().lower())
    # A folder that happens to be called like a model must not shadow it, unless it is named as one.
    looks_like_path = bool(re.search(r"[/\\]|\.json$", config)) or config.startswith(("~", "."))
    if _exists(path) and (looks_like_path or name is None):
        source = path / "config.json" if path.is_dir() else path
        return shape_from_config(config, read_config(path), str(source))
    if (fetched := find_model(config)) is not None:
        return shape_from_config(config, read_config(fetched), str(fetched / "config.json"))
    if name:
        return _built_in(name)
    if (cut := cut_off(config)) is not None:
        raise MissingModel(f"model.config: {config} is half fetched: {cut} is not whole", f"windtunnel fetch {config}", config)
    raise unknown_model(config, path)


def cut_off(config: str) -> Path | None:
    """Return the folder of a fetch that was cut off; None where there is none."""
    try:
        partial = model_folder(config).parent / f".partial-{model_folder(config).name}"
        return partial if partial.is_dir() and any(partial.iterdir()) else None  # of one that found no hub it is empty
    except (OSError, ValueError, RuntimeError):  # no name of a folder at all, or one that may not be entered
        return None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long, a folder that may not be entered
        return False


def is_known(name: str) -> bool:
    """Return whether a model is built in by this name or id."""
    return name.strip().lower() in _spellings()


def near_models(name: str) -> str:
    """Return the built-in models with the nearest names, or where none is near all of them, in words."""
    wanted = name.strip().lower().rsplit("/", 1)[-1]
    choices = {spelling.rsplit("/", 1)[-1]: name for spelling, name in _spellings().items()}
    near = list(dict.fromkeys(choices[found] for found in difflib.get_close_matches(wanted, choices, n=6, cutoff=0.5)))[:3]
    return f"nearest built-in models: {', '.join(near)}" if near else f"built-in models: {', '.join(known_models())}"


def unknown_model(config: str, path: Path | None = None) -> UserError:
    """Return the error of a model that is not there, with the nearest folders, where it can only be one, and names.

    Args:
        config: as the recipe has it.
        path: where a folder or file was looked for; None: from the working directory.
    """
    place = _shortened(str(path or config))
    folders = near_folders(str(path or config))
    if is_folder_name(config):
        fix = "a folder or file that holds the model's config.json is expected"
        what = place if config.endswith(".json") else f"folder {place}"
        nearest = f"nearest: {', '.join(folders)}" if folders else "check the path"
        return UserError(
            f"model.config: there is no {what}", f"{nearest}; {fix}, or a model by name: windtunnel fetch OWNER/NAME"
        )
    nearest = near_models(config)
    if folders:
        nearest = f"nearest folders: {', '.join(folders)}; {nearest}"
    return UserError(
        f"model.config: {_shortened(config)!r} is neither a built-in model nor a file or folder",
        f"{nearest}; or give a config.json, or bring any model of the hub: windtunnel fetch OWNER/NAME",
    )


def _shortened(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."
