"""Rehearse a conversion: a small model's files in fp8 with block scales become bf16, by the command that the real one takes."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.check import CheckFailed, Evidence, Say
from windtunnel.recipe import HuggingFaceModel, Recipe

from .context import Context, Rehearsal, Stage
from .processes import Child

if TYPE_CHECKING:
    from torch import Tensor


def write_random(config: dict[str, Any], folder: Path, seed: int, *, fp8: bool = False) -> None:
    """Write a model of random weights, if it is not there yet: an adapter needs a model with files beneath it.

    Args:
        config: a config.json's content.
        folder: where to; its parent is made.
        seed: of the weights.
        fp8: hold its matrices as DeepSeek-V3's files do, in e4m3 with a scale for each block of 128 x 128.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from windtunnel.convert import Choice, convert_folder

    # It gets its name when it is whole, so one that is there is whole.
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as part, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
        plain = Path(part) / "model"
        (model.to(torch.bfloat16) if fp8 else model).save_pretrained(plain)
        if fp8:
            convert_folder(plain, folder, Choice(to="fp8"), workers=1)
        else:
            plain.rename(folder)


def holds_fp8(recipe: Recipe) -> bool:
    """Return whether the model is trained beside frozen fp8 weights, which its scale model then reads from fp8 files."""
    return isinstance(recipe.model, HuggingFaceModel) and recipe.model.weights in ("fp8", "fp8-experts")


def _converts(context: Context) -> bool:
    from .tuning import tunes, uses_real_model

    return tunes(context) and holds_fp8(context.recipe) and not uses_real_model(context.recipe)


def convert(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Convert the scale model's files to bf16, hold them against decoding while loading, and load them with transformers."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from windtunnel.convert import decoded_weights
    from windtunnel.model import without_bar

    model = rehearsal.scale.model
    assert isinstance(model, HuggingFaceModel)
    made, log = rehearsal.folder / "bf16", rehearsal.folder / "convert.log"
    say("to bf16")
    with Child(["-m", "windtunnel", "convert", model.config, str(made), "--verify", "--json"], log) as child:
        if child.wait(lambda: None):
            raise CheckFailed(f"windtunnel convert {model.config}: {child.last_words()}")
    text = log.read_text(encoding="utf-8")
    report = json.loads(text[text.index("{") :])
    converted = {name: tensor for path in made.glob("*.safetensors") for name, tensor in load_file(path).items()}
    decoded = {name: read() for name, read in decoded_weights(Path(model.config)).items()}
    # Training decodes while it loads, without files; both must give the same bits.
    differ = [name for name in sorted(converted.keys() | decoded.keys()) if not _same(converted.get(name), decoded.get(name))]
    if differ:
        raise CheckFailed(f"{len(differ)} tensors are decoded otherwise while training loads them, such as {differ[0]}")
    say("loading it with transformers alone")
    with without_bar():
        loading: Any = AutoModelForCausalLM.from_pretrained(made, dtype=torch.bfloat16, output_loading_info=True)
    loaded, info = loading
    odd = sorted([*info["missing_keys"], *info["unexpected_keys"]])
    if odd:
        raise CheckFailed(f"transformers misses or does not know {len(odd)} tensors of {made}, such as {odd[0]}")
    kinds, verified = report["tensors_by_kind"], report["verified"]["weights"]
    text = (
        f"{kinds['decode']} matrices decoded from fp8 and {kinds['copy']} tensors copied, {verified:,} numbers of them equal to "
        f"the formula; training decodes the same bits; transformers loads all {loaded.num_parameters():,} weights alone"
    )
    return Evidence(text, {"decoded": kinds["decode"], "copied": kinds["copy"], "verified": verified})


def _same(mine: Tensor | None, other: Tensor | None) -> bool:
    import torch

    return mine is not None and other is not None and mine.dtype == other.dtype and torch.equal(mine, other)


CHECKS = (
    Stage(
        "convert", "fp8 files become bf16 by the formula, and transformers loads them alone", "read convert.log in the "
        "rehearsal's folder", convert, needs=("model",), applies=_converts,
    ),
)  # fmt: skip
