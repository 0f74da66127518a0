"""What to generate with: a run's checkpoint, an exported folder or a Hugging Face folder.

Weights to generate with are loaded here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from windtunnel.checkpoint import Checkpoint, Which, choose_checkpoint, is_export, verify_export
from windtunnel.data import Tokenizer, load_tokenizer
from windtunnel.model import GPT, fast_dtype, load_weights, model_of_recipe, use_supervision
from windtunnel.recipe import Recipe, Serve, UserError

from .engine import Engine
from .gpt import GPTDecoder
from .protocol import Generator
from .text import FolderText, OwnText


@dataclass(frozen=True)
class LoadedRun:
    """A checkpoint as a model, with what made it. `warnings`: which better checkpoints were damaged."""

    recipe: Recipe
    checkpoint: Checkpoint
    model: GPT
    tokenizer: Tokenizer
    warnings: tuple[str, ...] = ()

    def generator(self, prompts: Sequence[str], tokens: int, *, most_slots: int = 256) -> Engine:
        """A generator with room for each prompt and so many tokens more, for all at once; to be closed.

        The model must not be trained afterwards. What is generated depends on which prompts come together, on a GPU.
        """
        longest = max((len(self.tokenizer.encode(prompt, bos=True)) for prompt in prompts), default=1)
        slots = max(1, min(most_slots, len(prompts)))
        return gpt_generator(self.model, self.tokenizer, slots=slots, capacity=longest + tokens, exact=False)


@dataclass(frozen=True)
class Source:
    """Something that generates.

    Attributes:
        name: the model's id for clients.
        generator: to be closed by whoever loaded it.
        limits: what requests may ask for.
        what: where the weights are from, in words.
        created: seconds since the epoch.
        warnings: what to know, such as that a better checkpoint is damaged.
    """

    name: str
    generator: Generator
    limits: Serve
    what: str
    created: int
    warnings: tuple[str, ...] = ()


def load_run(run: Path, checkpoint: Which = "best", device: str | None = None, purpose: str = "") -> LoadedRun:
    """The run's model with the weights of its best, its newest or a given step's checkpoint.

    On CUDA the model computes in bf16, elsewhere in fp32.

    Args:
        run: a run's folder.
        checkpoint: which.
        device: None: the fastest there is.
        purpose: what it is for ("to serve"), for the refusal.

    Raises:
        UserError: no run folder, no good checkpoint, weights that do not fit the recipe, or the device is not there.
    """
    where = find_device(device)
    chosen = choose_checkpoint(run, checkpoint, purpose)
    folder, found = chosen.run, chosen.checkpoint
    tokenizer = load_tokenizer(folder.tokenizer_path)
    model = model_of_recipe(folder.recipe, tokenizer.vocab, found.part().tensors(), where, str(found.path))
    return LoadedRun(folder.recipe, found, model, tokenizer, chosen.warnings)


def load_source(
    path: Path,
    *,
    step: int | None = None,
    device: str | None = None,
    supervision: int | None = None,
    backend: str = "transformers",
) -> Source:
    """A generator for a run folder's best checkpoint (or that of a step), for an exported folder, or a Hugging Face folder.

    Args:
        path: the folder.
        step: the checkpoint of this step in place of the best.
        device: None: the fastest there is.
        supervision: supervision steps of a recursive model; None: as its recipe says.
        backend: what runs a Hugging Face folder: 'transformers' or 'vllm'.

    Raises:
        UserError: there is no model at `path`, no good checkpoint, or the device is not there.
    """
    is_run = (path / "recipe.yaml").is_file()
    if step is not None and not is_run and (path / "config.json").is_file() | (path / "model.safetensors").is_file():
        raise UserError(f"{path} holds exported weights, which have no steps", "leave --step out, or name the run's folder")
    if not is_run:
        verify_export(path)
    if (path / "config.json").is_file() and not is_run and not (path / "shape.json").is_file():
        if supervision is not None:
            raise UserError(f"{path} is no recursive model", "leave --supervision out")
        return _load_vllm(path) if backend == "vllm" else _load_hf(path, find_device(device))
    if backend != "transformers":
        raise UserError(f"--backend {backend} is for Hugging Face folders, which {path} is not", "leave --backend out")
    warnings: tuple[str, ...] = ()
    if is_export(path):
        where = find_device(device)
        model, tokenizer = load_weights(path, device=where, compute=fast_dtype(where)), load_tokenizer(path / "tokenizer.json")
        limits, what, created = Serve(), "exported weights", path.stat().st_mtime
    else:
        run = load_run(path, "best" if step is None else step, device, "to serve")
        model, tokenizer, limits, created = run.model, run.tokenizer, run.recipe.serve, run.checkpoint.created
        warnings = run.warnings
        loss = run.checkpoint.validation_loss
        what = f"step {run.checkpoint.step:,}" + ("" if loss is None else f", validation loss {loss:.4f}")
    used = use_supervision(model, supervision)
    if tokenizer.vocab != model.shape.vocab:
        raise UserError(f"{path}: the tokenizer has {tokenizer.vocab} tokens, the model {model.shape.vocab}")
    generator = gpt_generator(model, tokenizer, slots=limits.slots, queue=limits.queue)
    return Source(path.resolve().name, generator, limits, what if used is None else f"{what}, {used}", int(created), warnings)


def _load_hf(folder: Path, device: torch.device) -> Source:
    from .hf import HFDecoder, end_tokens, load_hf

    limits, model = Serve(), load_hf(folder, device, fast_dtype(device))
    text = FolderText(folder, end_tokens(folder))
    generator = Engine(HFDecoder(model), text, slots=limits.slots, queue=limits.queue)
    what = (
        f"{model.config.model_type}, {model.num_parameters() / 1e6:,.0f} M weights in {str(model.dtype).removeprefix('torch.')}"
    )
    return Source(folder.resolve().name, generator, limits, what, int((folder / "config.json").stat().st_mtime))


def _load_vllm(folder: Path) -> Source:
    from .vllm_adapter import load_vllm

    limits = Serve()
    generator = load_vllm(folder, slots=limits.slots, queue=limits.queue)
    return Source(folder.resolve().name, generator, limits, "vLLM", int((folder / "config.json").stat().st_mtime))


def gpt_generator(
    model: GPT, tokenizer: Tokenizer, *, slots: int, queue: int = 0, capacity: int | None = None, exact: bool = True
) -> Engine:
    """A generator with our GPT, which must not be trained any more. See `GPTDecoder` and `Engine` for the arguments."""
    return Engine(GPTDecoder(model, slots, capacity, exact=exact), OwnText(tokenizer), slots=slots, queue=queue)


def find_device(name: str | None) -> torch.device:
    """The device asked for, or the fastest there is. Raises UserError."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise UserError(f"--device: {name!r} is no device", "use cpu, cuda or cuda:1") from None
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()):
        raise UserError(f"--device: {name} is not there", "use cpu" if not torch.cuda.is_available() else "use cuda or cpu")
    return device
