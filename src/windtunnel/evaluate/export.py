"""Write a run's weights alone, as safetensors, with what is needed to use them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from windtunnel.data import load_tokenizer
from windtunnel.model import export_weights, recipe_shape
from windtunnel.recipe import UserError
from windtunnel.run import choose_checkpoint


@dataclass(frozen=True)
class Exported:
    """The safetensors file, and of which step its weights are."""

    file: Path
    step: int


def export_run(run: Path | str, to: Path | str, *, dtype: str = "bf16", step: int | None = None) -> Exported:
    """Write a checkpoint's weights, shape and tokenizer into a folder that `windtunnel serve` takes.

    Args:
        run: folder of the run.
        to: the folder, or model.safetensors in it.
        dtype: of the weights written, 'bf16' or 'fp32'.
        step: the checkpoint of this step; None: the best.

    Raises:
        UserError: no run, no good checkpoint, a file of another name was asked for, or it cannot be written.
    """
    target = Path(to)
    if target.suffix == ".safetensors":
        if target.name != "model.safetensors":
            raise UserError(
                f"--to {target}: the shape and the tokenizer go beside the weights, which are always called model.safetensors",
                f"use --to {target.with_suffix('')}",
            )
        target = target.parent
    folder, chosen = choose_checkpoint(Path(run), "best" if step is None else step, "to export")
    vocab = load_tokenizer(folder.tokenizer_path).vocab
    try:
        file = export_weights(target, recipe_shape(folder.recipe, vocab), chosen.weights(), dtype)
        if target.resolve() != folder.path.resolve():
            shutil.copyfile(folder.tokenizer_path, target / "tokenizer.json")
    except OSError as error:
        words = f"the weights cannot be written into {target}: {error.strerror or error}"
        raise UserError(words, "name another folder with --to") from None
    return Exported(file, chosen.step)
