"""The models of a recipe: our GPT, whose size is one dial, and Hugging Face's, as their config.json describes them."""

from __future__ import annotations

import difflib
import json
import os
import re
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from .section import Section


class GPTModel(Section):
    """A GPT whose size is one dial: dim = aspect * depth, heads = dim / head_dim."""

    kind: Literal["gpt"] = "gpt"
    depth: Annotated[int, Field(ge=1, le=256)] | Literal["auto"] = Field(
        "auto", description="layers; 'auto' is the deepest that fits the rig and reaches its tokens within the budget"
    )
    aspect: int = Field(64, ge=1, description="model width per layer of depth: dim = aspect * depth, rounded up to whole heads")
    head_dim: int = Field(128, ge=2, multiple_of=2, description="channels per attention head")
    kv_heads: int | None = Field(None, ge=1, description="key/value heads (GQA); null: as many as query heads")
    mlp: Literal["relu2", "swiglu"] = Field("relu2", description="activation of the MLP: squared ReLU, or gated SiLU")
    mlp_ratio: float | None = Field(
        None, gt=0, description="width of the MLP / dim; null: 4, for swiglu 8/3 (up to a multiple of 128)"
    )
    qk_gain: float = Field(1.2, gt=0, description="normed queries and keys are scaled by this, each")
    sequence: int = Field(2048, ge=8, description="tokens per training sequence")
    vocab_pad: int = Field(32, ge=1, description="the vocabulary is padded up to a multiple of this")
    value_embeddings: bool = Field(True, description="token embeddings added to the values of every other layer (ResFormer)")
    window: str = Field(
        "L", pattern="^[SL]+$", description="attention per layer, tiled: L full, S a quarter of the sequence; the last layer is L"
    )
    softcap: float = Field(15.0, gt=0, description="logits are squashed into (-softcap, softcap) by tanh")
    rope_base: float = Field(
        100_000.0, gt=1, description="of rotary position embeddings: the longest wavelength is 2 pi times it"
    )
    causal: bool = Field(True, description="false: every position sees all others, for puzzles instead of text")


class LoRA(Section):
    """Low-rank adapters on the linear layers of the blocks (Hu et al. 2021); the base weights are frozen."""

    rank: int = Field(16, ge=1, le=1024, description="of the two small matrices beside each large one")
    alpha: float = Field(32.0, gt=0, description="the adapter's output is scaled by alpha / rank")
    targets: Literal["attention", "all"] = Field("all", description="attention's projections, or those of the MLPs too")


class HuggingFaceModel(Section):
    """A causal language model as its config.json describes it."""

    kind: Literal["huggingface"] = "huggingface"
    config: str = Field(
        min_length=1,
        description="a built-in name such as smollm2-135m (its weights come with: windtunnel fetch NAME), a folder with "
        "config.json, weights and tokenizer, or a config.json alone",
    )
    sequence: int = Field(4096, ge=8, description="tokens per packed training sequence")
    adapter: LoRA | None = Field(None, description="null: every weight is trained")
    weights: Literal["bf16", "fp8", "fp8-experts", "int8", "int4"] = Field(
        "bf16",
        description="how the base weights are held; less than bf16 is for frozen weights under an adapter: fp8 all of the "
        "blocks with a scale for each row, fp8-experts the routed experts in blocks as DeepSeek-V3's files have them",
    )


FETCHED = "fetched.json"
"""In the folder of a model that was fetched: its id on the hub, and where its files are from."""


def models_root() -> Path:
    """Return the folder of fetched models: $WINDTUNNEL_MODELS, else `models` in the cache of the user's account."""
    own = os.environ.get("WINDTUNNEL_MODELS")
    return Path(own or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "windtunnel" / "models").expanduser()


def model_folder(name: str) -> Path:
    """Return where a model is kept once it is fetched: by its name in small letters, without its owner's."""
    return models_root() / name.strip().rsplit("/", 1)[-1].lower()


def find_model(name: str) -> Path | None:
    """Return the folder that holds a Hugging Face model on this machine; None where it is known by its name alone.

    Args:
        name: a folder, the config.json in one, or the name or id on the hub of a model that was fetched.
    """
    try:
        path = Path(name).expanduser()
        if path.is_dir() or path.is_file():
            return path if path.is_dir() else path.parent
        folder = model_folder(name)
        if not (folder / "config.json").is_file():
            return None
        # Two owners may have models of one name, which share a folder: the note in it says whose is there.
        if "/" not in name or not (folder / FETCHED).is_file():
            return folder
        owner_and_name: str = json.loads((folder / FETCHED).read_text(encoding="utf-8"))["id"]
        return folder if owner_and_name.lower() == name.strip().lower() else None
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError):  # no path at all, or not to be read
        return None


def is_folder_name(name: str) -> bool:
    """Return whether a model's name can only be that of a folder or file: ~, ./x, a/b/c, x.json, or x/y where x is a folder."""
    # Without looking whether anything is there: a folder that is misspelt must not be asked for on the hub.
    name = name.strip()
    if name.startswith(("~", ".", "/")) or name.endswith((".json", "/")) or "\\" in name:
        return True
    if "/" not in name:
        return False
    return not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or Path(name).parent.is_dir()


def near_folders(name: str) -> list[str]:
    """Return folders that are named nearly as a model is: beside where it was looked for, else those of fetched models."""
    path = Path(name.strip())
    beside = _entries(path.parent)
    near = [str(path.parent / found) for found in difflib.get_close_matches(path.name, beside, n=3, cutoff=0.6)]
    return near or difflib.get_close_matches(path.name.lower(), _entries(models_root()), n=3, cutoff=0.6)


def _entries(folder: Path) -> list[str]:
    """Return the names of a folder's folders; [] where there is none."""
    try:
        found = folder.expanduser().iterdir()
        return sorted(entry.name for entry in found if entry.is_dir() and not entry.name.startswith("."))
    except (OSError, ValueError, RuntimeError):
        return []


def _kind_by_default(value: object) -> object:
    """Take a model without a kind for a gpt."""
    return {"kind": "gpt", **value} if isinstance(value, dict) else value


Model: TypeAlias = Annotated[
    Annotated[GPTModel | HuggingFaceModel, Field(discriminator="kind")],
    BeforeValidator(_kind_by_default),
]
