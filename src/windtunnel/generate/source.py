"""What to generate with: a run's checkpoint, an exported folder or a Hugging Face folder.

Weights to generate with are loaded here and nowhere else.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from windtunnel.checkpoint import Checkpoint, Exported, Which, choose_checkpoint, export_run, is_export, verify_export
from windtunnel.convert import has_coded_experts
from windtunnel.data import Tokenizer, load_tokenizer
from windtunnel.model import GPT, ExpertGroup, NewRows, fast_dtype, hf_shape, load_weights, model_of_recipe, use_supervision
from windtunnel.recipe import HuggingFaceModel, Recipe, Serve, UserError
from windtunnel.run import read_own_recipe

from .batched import BatchedGenerator
from .decoder import HubDecoder
from .folder_text import FolderText
from .gpt import GPTDecoder
from .protocol import Generator
from .text import OwnText, TextCodec

if TYPE_CHECKING:
    from .hf_run import HubRun
    from .team import Load, Named


MOST_SLOTS = 256
"""Prompts of a run that are answered together at most."""


@dataclass(frozen=True)
class LoadedRun:
    """A checkpoint as a model, with what made it. `warnings`: which better checkpoints were damaged."""

    recipe: Recipe
    checkpoint: Checkpoint
    model: GPT
    tokenizer: Tokenizer
    warnings: tuple[str, ...] = ()

    def generator(self, prompts: Sequence[str], tokens: int) -> BatchedGenerator:
        """Return a generator with room for each prompt and so many tokens more, for all at once; to be closed.

        The model must not be trained afterwards. What is generated depends on which prompts come together, on a GPU.

        Args:
            prompts: of which the longest decides the room.
            tokens: generated behind each, at most.
        """
        # Measured, so that a few short prompts do not reserve the whole context.
        longest = max((len(self.tokenizer.encode(prompt, bos=True)) for prompt in prompts), default=1)
        slots = max(1, min(MOST_SLOTS, len(prompts)))
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
    """Return the run's model with the weights of its best, its newest or a given step's checkpoint.

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
    base: Path | None = None,
    ranks: int | None = None,
) -> Source:
    """Return a generator for a run's best checkpoint (or that of a step), an exported folder, or a Hugging Face folder.

    Args:
        path: the folder.
        step: the checkpoint of this step in place of the best.
        device: None: the fastest there is.
        supervision: supervision steps of a recursive model; None: as its recipe says.
        backend: what runs a Hugging Face folder: 'transformers' or 'vllm'.
        base: the folder of the model beneath a run's adapter; None: where the run found it.
        ranks: that share experts in fp8, of a run that was trained beside them or of a folder; None: as many as there are GPUs,
            of a run as many as in training.

    Raises:
        UserError: there is no model at `path`, no good checkpoint, or the device is not there.
    """
    # Told by their files alone, before anything is loaded: what is wrong is said in a moment.
    is_run = (path / "recipe.yaml").is_file()
    if is_run and is_hf_run(path):
        if supervision is not None:
            raise UserError(f"{path} is no recursive model", "leave --supervision out")
        if backend != "transformers":
            fix = f"windtunnel export {path} --to FOLDER, then windtunnel serve FOLDER --backend {backend}"
            raise UserError(f"--backend {backend} is for Hugging Face folders, and {path} is a run", fix)
        return _load_hf_run(path, "best" if step is None else step, find_device(device), base, ranks)
    if ranks is not None and (is_run or not has_coded_experts(path)):
        raise UserError(f"{path} has no experts in fp8 that ranks could share", "leave ranks out")
    if base is not None:
        raise UserError(f"--base is for runs of adapters, which {path} is not", "leave --base out")
    if not is_run:
        _check_folder(path, step)
    if (path / "config.json").is_file() and not is_run and not (path / "shape.json").is_file():
        if supervision is not None:
            raise UserError(f"{path} is no recursive model", "leave --supervision out")
        return _load_vllm(path) if backend == "vllm" else _load_hf(path, find_device(device), ranks)
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
        warnings, what = run.warnings, str(run.checkpoint)
    # After loading: how many steps a model may take stands in its shape.
    used = use_supervision(model, supervision)
    # Files of two exports in one folder would generate nonsense.
    if tokenizer.vocab != model.shape.vocab:
        raise UserError(f"{path}: the tokenizer has {tokenizer.vocab} tokens, the model {model.shape.vocab}")
    generator = gpt_generator(model, tokenizer, slots=limits.slots, queue=limits.queue)
    return Source(path.resolve().name, generator, limits, what if used is None else f"{what}, {used}", int(created), warnings)


def _check_folder(path: Path, step: int | None) -> None:
    """Refuse a folder that is no run where it is damaged, an adapter alone, or asked for a step. Raises UserError."""
    if step is not None and (path / "config.json").is_file() | (path / "model.safetensors").is_file():
        raise UserError(f"{path} holds exported weights, which have no steps", "leave --step out, or name the run's folder")
    verify_export(path)
    if (path / "adapter_config.json").is_file() and not (path / "config.json").is_file():
        raise UserError(f"{path} holds an adapter without its model", "serve its run, or export that without --adapter")


def _load_hf(folder: Path, device: torch.device, ranks: int | None) -> Source:
    from .hf import end_tokens
    from .team import Named

    limits = Serve()
    size = _ranks_of_folder(folder, device) if ranks is None else ranks
    named = Named(str(folder))
    generator = _generator(loader_of(named), named, device, size, lambda: FolderText(folder, end_tokens(folder)), limits)
    # For people: what is served stands in the first line that a server prints.
    kind = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    dtype = str(fast_dtype(device)).removeprefix("torch.")
    what = f"{kind}, {generator.weights / 1e6:,.0f} M weights in {dtype}" + (f", experts over {size} ranks" if size > 1 else "")
    return Source(folder.resolve().name, generator, limits, what, int((folder / "config.json").stat().st_mtime))


def _load_hf_run(path: Path, which: Which, device: torch.device, base: Path | None, ranks: int | None) -> Source:
    from .hf_run import HubRun

    run = HubRun.open(path, which, "to serve", base)
    # A run has limits in its recipe; a folder has the defaults.
    limits = run.run.recipe.serve
    size = _shares_of(run, device, ranks)
    generator = _generator(run.load, _named(run), device, size, run.text, limits)
    return Source(path.resolve().name, generator, limits, str(run.checkpoint), int(run.checkpoint.created), run.warnings)


def _generator(
    load: Load, named: Named, device: torch.device, ranks: int, text: Callable[[], TextCodec], limits: Serve
) -> BatchedGenerator:
    """Return a generator over a Hugging Face model whose experts lie on so many ranks."""
    from .hf_recorded import hf_decoder
    from .team import SharedGenerator, start_team

    if ranks == 1:
        return BatchedGenerator(hf_decoder(load(device, ExpertGroup())), text(), slots=limits.slots, queue=limits.queue)
    # This process is the first rank, and starts one more for each further GPU.
    leader = start_team(load, named, device, ranks)
    return SharedGenerator(leader, text(), slots=limits.slots, queue=limits.queue)


def loader_of(named: Named) -> Load:
    """Return what loads a run's or a folder's Hugging Face model, given a device and the ranks that share its experts.

    Raises:
        UserError: see `load_source`.
    """
    from .hf import load_hf
    from .hf_run import HubRun

    path, base = Path(named.path), None if named.base is None else Path(named.base)
    if (path / "recipe.yaml").is_file():
        return HubRun.open(path, named.which, "to generate with", base).load
    new = None if named.new is None else NewRows.parse(named.new)
    return lambda device, group: load_hf(path, device, fast_dtype(device), group, new)


@contextlib.contextmanager
def run_decoder(run: HubRun, device: torch.device, ranks: int | None = None) -> Iterator[HubDecoder]:
    """Yield a fine-tuned run's model, to generate and to score with; its memory is free afterwards.

    Args:
        run: a checkpoint.
        device: where it computes.
        ranks: that share experts in fp8; None: as many as in training, if there are so many GPUs.

    Raises:
        UserError: the weights cannot be loaded, or ranks cannot share them.
    """
    with _open_decoder(run.load, _named(run), device, _shares_of(run, device, ranks)) as decoder:
        yield decoder


@contextlib.contextmanager
def folder_decoder(
    folder: Path, device: torch.device, *, new: NewRows | None = None, ranks: int | None = None
) -> Iterator[HubDecoder]:
    """Yield the model of a Hugging Face folder, to generate and to score with; its memory is free afterwards.

    Args:
        folder: see `load_hf`.
        device: where it computes.
        new: rows of tokens that the folder lacks.
        ranks: that share experts in fp8; None: as many as there are GPUs.

    Raises:
        UserError: see `load_hf`.
    """
    from .team import Named

    size = _ranks_of_folder(folder, device) if ranks is None else ranks
    named = Named(str(folder), new=None if new is None else asdict(new))
    with _open_decoder(loader_of(named), named, device, size) as decoder:
        yield decoder


@contextlib.contextmanager
def _open_decoder(load: Load, named: Named, device: torch.device, ranks: int) -> Iterator[HubDecoder]:
    from .hf_recorded import hf_decoder
    from .team import start_team

    if ranks == 1:
        yield hf_decoder(load(device, ExpertGroup()))
    else:
        with contextlib.closing(start_team(load, named, device, ranks)) as leader:
            yield leader
    gc.collect()  # modules, hooks and recorded graphs refer to each other: counting references alone frees none of them


def _named(run: HubRun) -> Named:
    from .team import Named

    return Named(str(run.run.path), run.checkpoint.step, None if run.base is None else str(run.base))


def _shares_of(run: HubRun, device: torch.device, asked: int | None) -> int:
    """Return over how many ranks a run's experts go; `asked` None: on GPUs as in training, if so many are here."""
    if asked is not None:
        if asked > 1:
            run.require_shares(asked)
        return asked
    if run.model.weights != "fp8-experts" or device.type != "cuda":
        return 1
    # As in training, where it was seen to fit.
    trained = int(run.run.manifest["plan"]["layout"].get("expert", 1))
    # A divisor of what it was trained on divides the experts too, without looking how many there are.
    return max(n for n in range(1, trained + 1) if trained % n == 0 and n <= torch.cuda.device_count())


def _ranks_of_folder(folder: Path, device: torch.device) -> int:
    """Return over how many GPUs the experts of a folder in fp8 go: over all that are here, if they divide them."""
    if device.type != "cuda" or not has_coded_experts(folder):
        return 1
    experts = hf_shape(str(folder)).experts
    return 1 if experts is None else math.gcd(experts.count, torch.cuda.device_count())


def is_hf_run(run: Path) -> bool:
    """Return whether a run fine-tunes a Hugging Face model. Raises UserError where its recipe cannot be read."""
    return isinstance(read_own_recipe(run).model, HuggingFaceModel)


def export_model(
    run: Path, to: Path, *, dtype: str | None = None, which: Which = "best", adapter: bool = False, base: Path | None = None
) -> Exported:
    """Write any run's weights with what is needed to use them; see `hf_export.export_hub` and, of our own models, `export_run`.

    Args:
        run: its folder.
        to: the folder to write, or model.safetensors in it.
        dtype: fp32, bf16 or fp16; None: bf16, of an adapter alone fp32.
        which: the checkpoint: 'best', 'newest' or a step.
        adapter: write the adapter alone, as peft reads it.
        base: the folder of the model beneath an adapter; None: where the run found it.

    Raises:
        UserError: no run, no good checkpoint, or the folder cannot be written.
    """
    if is_hf_run(run):
        from .hf_export import export_hub
        from .hf_run import HubRun

        return export_hub(HubRun.open(run, which, "to export", base), to, dtype=dtype, adapter=adapter)
    if adapter or base is not None:
        raise UserError(f"--adapter and --base are for runs of adapters, which {run} is not", "leave them out")
    return export_run(run, to, dtype=dtype or "bf16", which=which)


def _load_vllm(folder: Path) -> Source:
    from .vllm_adapter import load_vllm

    limits = Serve()
    generator = load_vllm(folder, slots=limits.slots, queue=limits.queue)
    return Source(folder.resolve().name, generator, limits, "vLLM", int((folder / "config.json").stat().st_mtime))


def gpt_generator(
    model: GPT, tokenizer: Tokenizer, *, slots: int, queue: int = 0, capacity: int | None = None, exact: bool = True
) -> BatchedGenerator:
    """Return a generator with our GPT, which must not be trained any more.

    Args:
        model: the GPT, in evaluation from now on.
        tokenizer: its own.
        slots: sequences decoded together.
        queue: sequences that may wait.
        capacity: tokens a sequence may have; None: the model's context.
        exact: see `GPTDecoder`.
    """
    return BatchedGenerator(GPTDecoder(model, slots, capacity, exact=exact), OwnText(tokenizer), slots=slots, queue=queue)


def find_device(name: str | None) -> torch.device:
    """Return the device asked for, or the fastest there is. Raises UserError: it is not there."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise UserError(f"--device: {name!r} is no device", "use cpu, cuda or cuda:1") from None
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()):
        raise UserError(f"--device: {name} is not there", "use cpu" if not torch.cuda.is_available() else "use cuda or cpu")
    return device
