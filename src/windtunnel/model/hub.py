"""Weights as the hub's files have them: read a tensor at a time, and named as transformers names them, or back.

Those names differ: transformers holds the experts of a layer in one tensor, files hold them apart.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from windtunnel.recipe import UserError

from .base import unreadable, weight_files
from .new_rows import NewRows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Readers = dict[str, Callable[[], Tensor]]


def open_weights(folder: Path) -> Readers:
    """Return what reads each tensor of a folder's files, by its name there.

    Raises:
        UserError: a file cannot be read, or the weights are quantised.
    """
    return {name: partial(file.get_tensor, name) for name, file in _opened(folder).items()}


def open_heads(folder: Path) -> Readers:
    """Return the same with tensors that have a shape and no numbers, on the device 'meta'."""

    def head(read: Callable[[], Any]) -> Tensor:
        return torch.empty(read().get_shape(), device="meta")

    return {name: partial(head, partial(file.get_slice, name)) for name, file in _opened(folder).items()}


def _opened(folder: Path) -> dict[str, Any]:
    """Return the opened file of each tensor of a folder; see `open_weights`."""
    try:
        opened = [safe_open(path, framework="pt") for path in weight_files(folder)]
        files = {name: file for file in opened for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (OSError, SafetensorError) as error:
        raise unreadable(folder, error) from None
    if any(name.endswith(("_scale_inv", "_blocks", "_scales", ".qweight")) for name in files):
        raise UserError(f"{folder}: its weights are quantised", "convert them to bf16 first: windtunnel convert")
    return files


def require_fit(config: Mapping[str, Any], folder: Path, heads: Readers) -> None:
    """Refuse weights that are not those of a config.json.

    Args:
        config: the mapping in it.
        folder: of the weights, for messages.
        heads: tensors of the files, of which the shapes alone are read.

    Raises:
        UserError: names the tensor that is missing or of another shape.
    """
    model = hollow(config)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters(remove_duplicate=False)}
    found: set[str] = set()
    for name, tensor in from_hub(model, heads, shapes):
        if name in shapes and tuple(tensor.shape) != shapes[name]:
            raise UserError(
                f"{folder}: {name} is of shape {list(tensor.shape)}, its config.json asks for {list(shapes[name])}",
                "give the config.json that belongs to the weights",
            )
        found.add(name)
    # Tied tables under all their names: files have one of them.
    parameters = dict(model.named_parameters(remove_duplicate=False))
    tied = {id(parameters[name]) for name in found & parameters.keys()}
    missing = sorted(name for name, p in parameters.items() if name not in found and id(p) not in tied)
    if missing:
        raise UserError(
            f"{folder} has no weights for {', '.join(missing[:3])} ({len(missing)} in all)",
            "download it again, or give the config.json that belongs to it",
        )


def hollow(config: Mapping[str, Any]) -> PreTrainedModel:
    """Return transformers' model of a config.json without memory, on the device 'meta'. Raises UserError."""
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32)
    except Exception as error:  # whatever a config can be wrong in ends in some exception there
        raise UserError(f"transformers cannot build {config.get('model_type')}: {error}", "mend its config.json") from error
    return model


@contextlib.contextmanager
def without_bar() -> Iterator[None]:
    """Keep transformers' progress bars out of what a command prints."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def blocks_of(model: PreTrainedModel) -> list[nn.Module]:
    """Return the transformer blocks, first to last."""
    count = model.config.get_text_config().num_hidden_layers
    # By length: names of the list differ from model to model, and other lists have other lengths.
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    raise UserError(f"model.config: {type(model).__name__} has no list of {count} blocks", "choose another model")


def token_tables(model: PreTrainedModel) -> list[str]:
    """Return the names of embedding and head, as transformers names them; where they are tied, both."""
    tables = (model.get_input_embeddings(), model.get_output_embeddings())
    named = {id(module): name for name, module in model.named_modules()}
    return [f"{named[id(table)]}.weight" for table in tables if table is not None]


@torch.no_grad()
def grow_tables(model: PreTrainedModel, new: NewRows) -> None:
    """Give a model of transformers that is whole in memory the first rows of new tokens, in place."""
    embedding: Any = model.get_input_embeddings()
    head: Any = model.get_output_embeddings()
    # Before the tables grow: resizing replaces them.
    begun = [new.means(table.weight) for table in (embedding, head)]
    if embedding.weight.size(0) < new.end:
        model.resize_token_embeddings(new.end, mean_resizing=False)
    grown: tuple[Any, Any] = (model.get_input_embeddings(), model.get_output_embeddings())
    for table, rows in zip(grown, begun, strict=True):
        table.weight[new.first : new.end] = rows


def linears(blocks: Sequence[nn.Module], targets: str) -> list[nn.Linear]:
    """Return linear layers of the blocks: attention's projections, or those of dense and shared-expert MLPs too.

    Routers, and gates of a single channel, are not among them.
    """
    found: list[nn.Linear] = []
    for block in blocks:
        for name, module in block.named_modules():
            if not isinstance(module, nn.Linear) or module.out_features == 1 or "router" in name or name.endswith(".gate"):
                continue
            if targets == "all" or "attn" in name or "attention" in name:
                found.append(module)
    return found


def merge_adapter(base: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Return W + scale * B A in fp32: the base weight (O, I), A (R, I) and B (O, R)."""
    return base.float() + scale * (b.float() @ a.float())


def from_hub(model: PreTrainedModel, files: Readers, places: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield the files' tensors by transformers' names, such as the experts of a layer in one, a parameter at a time.

    Args:
        model: whose parameters they are; nothing is written into it.
        files: what reads each tensor, by its name in the files.
        places: its parameters and saved buffers, by transformers' names.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

    mapping = get_model_conversion_mapping(model)
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    of_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    waiting: dict[str, WeightConverter | WeightRenaming] = {}
    known = dict(places)
    for original in sorted(files, key=dot_natural_key):
        name, pattern = rename_source_key(original, renamings, converters, model.base_model_prefix, known)
        if pattern is None:
            step = waiting.setdefault(name, WeightRenaming(original, name))
        else:
            step = waiting.setdefault(name, copy.deepcopy(of_pattern[pattern]))
        # Readers, not tensors: transformers reads each when it converts the parameter that it belongs to.
        step.add_tensor(name, original, pattern or original, files[original])  # type: ignore[arg-type]
    for name, step in waiting.items():
        # Files may hold what this model does not build, such as heads for further tokens: it is never read.
        if name in places or isinstance(step, WeightConverter):
            for target, found in step.convert(name, model=model, config=model.config).items():
                yield target, found[0] if isinstance(found, list) else found


Parts = dict[int, dict[int, str]]
"""Names of files' tensors by expert and by part."""


def expert_sources(model: PreTrainedModel, files: Iterable[str], places: Mapping[str, Any]) -> dict[str, Parts]:
    """Return where the files have each expert's matrices: for transformers' tensor of all experts, by expert and by part.

    The parts of 'gate_up_proj' are gate and up, in this order.

    Args:
        model: whose converters say what belongs together.
        files: names of tensors.
        places: transformers' names of such tensors of all experts.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    mapping = get_model_conversion_mapping(model)
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    part_of = {pattern: part for converter in converters for part, pattern in enumerate(converter.source_patterns)}
    found: dict[str, Parts] = {}
    known = dict(places)
    for original in files:
        number = re.search(r"\.experts\.(\d+)\.", original)
        if number is None:
            continue
        name, pattern = rename_source_key(original, renamings, converters, model.base_model_prefix, known)
        if pattern is not None and name in places:
            found.setdefault(name, {}).setdefault(int(number[1]), {})[part_of[pattern]] = original
    return found


def to_hub(model: PreTrainedModel, weights: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield weights of transformers' names, those of a block or more together, by the names of files."""
    from transformers.core_model_loading import revert_weight_conversion

    for name, tensor in revert_weight_conversion(model, weights).items():
        yield name, tensor.contiguous()
