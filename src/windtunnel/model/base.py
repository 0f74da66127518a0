"""The folder of weights that a fine-tuning begins with: which it is, and what tells it from every other. Without torch."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

from windtunnel.recipe import HuggingFaceModel, Recipe, UserError, find_model

from .fetch import weights_folder
from .hf_config import read_config
from .known import hf_shape
from .new_rows import NewRows, with_rows
from .stored import INDEX, SINGLE

READ_OF_EACH = 4096
"""Bytes of a tensor that its fingerprint reads: training changes them, and a folder of any size is told in a moment."""
# Keys of a config.json that do not change what its weights compute.
_ABOUT = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache")

RANDOM_BASE = (
    "an adapter of random weights is trained: nothing keeps those, so that it can be neither evaluated, served nor exported "
    "(model.adapter=null trains all weights)"
)


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder. Raises UserError."""
    if not (folder / INDEX).is_file():
        return [folder / SINGLE]
    try:
        return [folder / name for name in sorted(set(json.loads((folder / INDEX).read_text())["weight_map"].values()))]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise unreadable(folder, error) from None


def fingerprint(folder: Path) -> str:
    """Return what tells a folder of weights from every other: its config, and of each tensor name, dtype, shape and first bytes.

    However the tensors are spread over files, it is the same.

    Raises:
        UserError: a file cannot be read.
    """
    found: dict[str, str] = {}
    try:
        for path in weight_files(folder):
            with open(path, "rb") as file:
                # A safetensors file: the length of its header, the header as JSON, and behind it the tensors.
                size = int.from_bytes(file.read(8), "little")
                for name, entry in json.loads(file.read(size)).items():
                    if name != "__metadata__":
                        begin, end = entry["data_offsets"]
                        file.seek(8 + size + begin)
                        content = file.read(min(READ_OF_EACH, end - begin))
                        about = json.dumps([entry["dtype"], entry["shape"]])
                        found[name] = hashlib.blake2b(about.encode() + content, digest_size=16).hexdigest()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, MemoryError, OverflowError) as error:
        raise unreadable(folder, error) from None
    config = read_config(folder) if (folder / "config.json").is_file() else {}
    # The config too: the same weights with other rotary positions are another model.
    known = {key: value for key, value in config.items() if key not in _ABOUT}
    return hashlib.blake2b(json.dumps([known, found], sort_keys=True).encode(), digest_size=16).hexdigest()


def unreadable(folder: Path, error: Exception) -> UserError:
    """Return the error of weights that cannot be read."""
    return UserError(f"{folder}: its weights cannot be read: {str(error) or 'no safetensors file'}", "download it again")


def base_weights(recipe: Recipe) -> Path | None:
    """Return the folder of weights that a fine-tuning of a Hugging Face model begins with; None: they are random.

    Args:
        recipe: of one stage that trains.
    """
    model, given = recipe.model, recipe.training[0].init_from
    assert isinstance(model, HuggingFaceModel)
    if given == "random":
        return None
    # What a stage begins with may be a run, which is no folder of weights: beneath its adapter lies the model itself.
    return (weights_folder(given) if given else None) or weights_folder(model.config)


def adapts_random_weights(recipe: Recipe) -> bool:
    """Return whether a stage would train an adapter of random weights, which no run keeps; false of what is no such model."""
    model = recipe.model
    return isinstance(model, HuggingFaceModel) and model.adapter is not None and base_weights(recipe) is None


def describe_base(recipe: Recipe) -> dict[str, str] | None:
    """Return what a run keeps of the weights that it begins with (JSON): their folder and fingerprint; None: they are random."""
    folder = base_weights(recipe)
    return None if folder is None else {"folder": str(folder.resolve()), "fingerprint": fingerprint(folder)}


def require_base(found: Path | None, wanted: dict[str, str], whose: str) -> Path:
    """Return a folder if it is the model that an adapter was trained on.

    Args:
        found: the folder to look at; None: there is none.
        wanted: what `describe_base` returned when the adapter's training began.
        whose: the adapter's run, for the message.

    Raises:
        UserError: it is not there, or another model.
    """
    fix = f"bring {wanted['folder']} back as it was, or name the folder that holds it now (export and serve: --base)"
    if found is None or weights_folder(str(found)) is None:
        raise UserError(f"{whose} is an adapter, and the model beneath it is not in {found or wanted['folder']}", fix)
    if fingerprint(found) != wanted["fingerprint"]:
        raise UserError(f"{found} is another model than the one that {whose} is an adapter of: config or weights differ", fix)
    return found


def describing_files(recipe: Recipe, new: NewRows | None = None) -> dict[str, Any]:
    """Return config.json and generation_config.json of the model that a recipe fine-tunes, as its authors wrote them.

    Args:
        recipe: of one stage that trains.
        new: rows of tokens added to its tokenizer, which its vocabulary must have room for.
    """
    assert isinstance(recipe.model, HuggingFaceModel)
    file, folder = Path(recipe.model.config).expanduser(), find_model(recipe.model.config)
    config = read_config(file if file.is_file() else folder) if folder is not None else hf_shape(recipe.model.config).raw
    generation: dict[str, Any] = {}
    # The weights' folder first: a config by name has no generation_config.json beside it.
    for place in (base_weights(recipe), folder):
        if place is not None and not generation:
            with contextlib.suppress(OSError, ValueError):
                generation = json.loads((place / "generation_config.json").read_text(encoding="utf-8"))
    return {"config.json": with_rows(config, new), "generation_config.json": generation}
