"""What to serve: a run's checkpoint or an exported folder, as a model with its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from windtunnel.data import Tokenizer, load_tokenizer
from windtunnel.model import GPT, fast_dtype, load_weights, model_of_recipe, use_supervision
from windtunnel.recipe import Serve, UserError
from windtunnel.run import choose_checkpoint


@dataclass(frozen=True)
class Source:
    """A model ready to generate. `what` says where the weights are from."""

    name: str
    model: GPT
    tokenizer: Tokenizer
    limits: Serve
    what: str
    created: int


def load_source(path: Path, *, step: int | None = None, device: str | None = None, supervision: int | None = None) -> Source:
    """Load a run folder's best checkpoint (or that of a step), or an exported folder.

    Args:
        supervision: supervision steps of a recursive model; None: as its recipe says.

    On CUDA the model computes in bf16, elsewhere in fp32.

    Raises:
        UserError: there is no model at `path`, no good checkpoint, or the device is not there.
    """
    where = _device(device)
    compute = fast_dtype(where)
    if (path / "model.safetensors").is_file() and not (path / "recipe.yaml").is_file():
        if step is not None:
            raise UserError(f"{path} holds exported weights, which have no steps", "leave --step out, or name the run's folder")
        model = load_weights(path, device=where, compute=compute)
        tokenizer = load_tokenizer(path / "tokenizer.json")
        created = int((path / "model.safetensors").stat().st_mtime)
        source = Source(path.resolve().name, model, tokenizer, Serve(), "exported weights", created)
    else:
        run, checkpoint = choose_checkpoint(path, "best" if step is None else step, "to serve")
        tokenizer = load_tokenizer(run.tokenizer_path)
        model = model_of_recipe(run.recipe, tokenizer.vocab, checkpoint.weights(), where, str(checkpoint.path))
        loss = "" if checkpoint.validation_loss is None else f", validation loss {checkpoint.validation_loss:.4f}"
        what = f"step {checkpoint.step:,}{loss}"
        source = Source(path.resolve().name, model, tokenizer, run.recipe.serve, what, int(checkpoint.created))
    used = use_supervision(source.model, supervision)
    if used is not None:
        source = replace(source, what=f"{source.what}, {used}")
    if source.tokenizer.vocab != source.model.shape.vocab:
        raise UserError(f"{path}: the tokenizer has {source.tokenizer.vocab} tokens, the model {source.model.shape.vocab}")
    for weight in source.model.parameters():
        # Once, rather than at every token: the products are the same, the memory half.
        if weight.ndim == 2:
            weight.data = weight.data.to(compute)
    return source


def _device(name: str | None) -> torch.device:
    """The device asked for, or the fastest there is."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise UserError(f"--device: {name!r} is no device", "use cpu, cuda or cuda:1") from None
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()):
        raise UserError(f"--device: {name} is not there", "use cpu" if not torch.cuda.is_available() else "use cuda or cpu")
    return device
