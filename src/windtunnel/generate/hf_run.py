"""A fine-tuned Hugging Face run as the hub would have it: weights under the hub's names, config, tokenizer and chat template.

A checkpoint holds what was trained. Under an adapter the rest is read from the folder of weights that the run began with,
a tensor at a time, if that still is what it was. Nothing here needs a GPU or other ranks.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedModel

from windtunnel.checkpoint import (
    DTYPES,
    Checkpoint,
    Which,
    choose_checkpoint,
)
from windtunnel.convert import decoded_weights, weights_beside_experts
from windtunnel.data import Tokenizer, end_of_answer, load_tokenizer, template_of, write_tokenizer
from windtunnel.model import (
    ExpertGroup,
    NewRows,
    blocks_of,
    decode_fp8,
    describe_base,
    describing_files,
    encode_fp8,
    fast_dtype,
    from_hub,
    holds_experts,
    hollow,
    linears,
    merge_adapter,
    require_base,
    to_hub,
    token_tables,
    without_bar,
)
from windtunnel.recipe import HuggingFaceModel, UserError
from windtunnel.run import RunFolder

from .folder_text import FolderText
from .shared_experts import fill_model, require_whole, sharing_model

Named = Iterator[tuple[str, Tensor]]
A, B = ".lora_A.default.weight", ".lora_B.default.weight"
"""How peft names an adapter's two matrices, behind the name of the layer."""
ROWS = ".token_adapter.trainable_tokens_delta.default"
"""And the trained rows of new tokens, behind that of the table."""


@dataclass
class Rounding:
    """What rounding takes from weights that were merged with an adapter: sums of squares of its error and of their change."""

    error: float = 0.0
    change: float = 0.0

    def add(self, base: Tensor, merged: Tensor, dtype: torch.dtype) -> None:
        """Count one weight."""
        self.error += float((merged.to(dtype).float() - merged).square().sum())
        self.change += float((merged - base.float()).square().sum())

    @property
    def share(self) -> float | None:
        """Return the error over the change, root mean square; None where nothing changed."""
        return math.sqrt(self.error / self.change) if self.change else None


@dataclass(frozen=True)
class HubRun:
    """A checkpoint of a Hugging Face run.

    Attributes:
        base: the folder of the frozen weights under an adapter; None: every weight was trained.
        warnings: which better checkpoints were damaged.
    """

    run: RunFolder
    checkpoint: Checkpoint
    base: Path | None
    warnings: tuple[str, ...] = ()

    @classmethod
    def open(cls, run: Path, which: Which = "best", purpose: str = "", base: Path | None = None) -> HubRun:
        """Choose a run's checkpoint and find the weights beneath it.

        Args:
            run: the run's folder.
            which: the checkpoint: 'best', 'newest' or a step.
            purpose: what it is for, as in "to serve", for messages.
            base: the folder of the model that an adapter was trained on; None: where the run found it.

        Raises:
            UserError: no good checkpoint, or the model beneath an adapter is not there or another one.
        """
        chosen = choose_checkpoint(run, which, purpose)
        model = chosen.run.recipe.model
        assert isinstance(model, HuggingFaceModel)
        if model.adapter is None:
            return cls(chosen.run, chosen.checkpoint, None, chosen.warnings)
        manifest = chosen.run.manifest
        # Runs of older versions have not noted which folder they began with; the recipe says it too.
        recorded = manifest["base"] if "base" in manifest else describe_base(chosen.run.recipe)
        if recorded is None:
            raise UserError(
                f"{run} is an adapter of random weights, which nothing has kept",
                "train an adapter of a model with weights: model.config is then the folder that holds them",
            )
        found = require_base(base or Path(recorded["folder"]), recorded, str(run))
        return cls(chosen.run, chosen.checkpoint, found, chosen.warnings)

    @property
    def model(self) -> HuggingFaceModel:
        """Return the recipe's model."""
        assert isinstance(self.run.recipe.model, HuggingFaceModel)
        return self.run.recipe.model

    @cached_property
    def _described(self) -> dict[str, Any]:
        # Older checkpoints do not hold it; then the recipe describes the same.
        kept = "config.json" in self.checkpoint.config
        return self.checkpoint.config if kept else describing_files(self.run.recipe, NewRows.of(self.tokenizer))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer that made the tokens."""
        return load_tokenizer(self.run.tokenizer_path)

    @cached_property
    def hollow(self) -> PreTrainedModel:
        """Return the model without numbers."""
        return hollow(self._described["config.json"])

    def config(self, dtype: str) -> dict[str, Any]:
        """Return the config.json of weights in a dtype ('bf16')."""
        coded = ("torch_dtype", "quantization_config", "compression_config")  # what is trained on fp8 is written in a dtype
        content = {key: value for key, value in self._described["config.json"].items() if key not in coded}
        tied = bool(self.hollow.config.tie_word_embeddings)
        own = {"architectures": [type(self.hollow).__name__], "dtype": DTYPES[dtype], "tie_word_embeddings": tied}
        further = "num_nextn_predict_layers"  # transformers has no module for them: they are neither trained nor written
        return content | own | ({further: 0} if further in content else {})

    @cached_property
    def ends(self) -> list[int]:
        """Return the tokens that end a text: what ends an answer by the template, the tokenizer's own, and the model's."""
        template = template_of(self.run.recipe, self.tokenizer)
        found = [end_of_answer(self.tokenizer, template), self.tokenizer.eos]
        model = self._described["generation_config.json"].get("eos_token_id", self._described["config.json"].get("eos_token_id"))
        # A list of ends, one of them, or none: config.json may have any.
        found += model if isinstance(model, list) else [] if model is None else [model]
        if template is None:  # documents, each of which the next one's beginning ends
            found.append(self.tokenizer.bos)
        return list(dict.fromkeys(int(token) for token in found))

    def generation_config(self) -> dict[str, Any]:
        """Return the generation_config.json, by which generation ends where this model ends its answers."""
        return self._described["generation_config.json"] | {"eos_token_id": self.ends if len(self.ends) > 1 else self.ends[0]}

    def text(self) -> FolderText:
        """Return the tokenizer with the chat template that the run was trained with."""
        with tempfile.TemporaryDirectory() as folder:
            self.write_text(Path(folder))
            return FolderText(Path(folder), self.ends)

    def write_text(self, folder: Path) -> None:
        """Write what AutoTokenizer reads, and config.json, by which it knows the model's family."""
        write_tokenizer(folder, self.tokenizer, template_of(self.run.recipe, self.tokenizer))
        (folder / "config.json").write_text(json.dumps(self.config("bf16")), encoding="utf-8")

    # Weights

    def tensors(self, dtype: str, rounding: Rounding | None = None) -> Named:
        """Yield every weight by its name in files, one block of the model after the other, adapters merged.

        Args:
            dtype: of the parameters: 'bf16'. Buffers that are saved with a model keep their own.
            rounding: counts what the dtype takes from merged weights.

        Raises:
            UserError: the checkpoint or the base is of another model.
        """
        model, wanted = self.hollow, getattr(torch, DTYPES[dtype])
        trained = dict(model.named_parameters())
        # A block at a time: names in files may need several tensors of a block joined, and no more must fit memory.
        for group in _by_block(
            model, self._trained() if self.base is None else self._merged(self.base, wanted, rounding=rounding)
        ):
            cast = {name: tensor.to(wanted) if name in trained else tensor for name, tensor in group}
            yield from to_hub(model, cast)

    def _trained(self) -> Named:
        """Yield every parameter from the checkpoint, and saved buffers, which no step changes, as they are made."""
        part, names = self.checkpoint.part(), list(dict(self.hollow.named_parameters()))
        if part.entries.keys() != set(names):
            raise self._another(min(part.entries.keys() ^ set(names)))
        yield from part.tensors(names)
        for name, module in self.hollow.named_modules():
            saved = [key for key in module._buffers if key not in module._non_persistent_buffers_set]
            if saved:
                # Computed anew as at the beginning: no step changes them, and checkpoints hold parameters alone.
                made = module.to_empty(device="cpu", recurse=False)
                self.hollow._init_weights(made)
                yield from ((f"{name}.{key}", tensor) for key in saved if (tensor := made._buffers[key]) is not None)

    def _merged(
        self,
        base: Path,
        dtype: torch.dtype,
        into: PreTrainedModel | None = None,
        without: Collection[str] = (),
        rounding: Rounding | None = None,
    ) -> Named:
        """Yield the base's weights, merged with the adapter in those layers that have one.

        Args:
            base: the folder of the frozen weights.
            dtype: of tables with rows of new tokens.
            into: whose weights are wanted; None: all.
            without: names of files' tensors that are not read.
            rounding: counts what that dtype takes from merged weights.
        """
        assert self.model.adapter is not None
        part, model = self.checkpoint.part(), into or self.hollow
        # Under both names where weights are tied: files may have either.
        places = dict(model.named_parameters(remove_duplicate=False)) | _saved_buffers(model)
        adapted = {f"{name.removesuffix(A)}.weight" for name in part.entries if name.endswith(A)}
        packed = _held_in_fp8(model) if self.model.weights == "fp8" else set()
        new, tables = NewRows.of(self.tokenizer), token_tables(model)
        if not adapted <= places.keys():
            raise self._another(min(adapted - places.keys()))
        done: set[int] = set()
        beside_experts = self.model.weights == "fp8-experts" and into is None
        files = weights_beside_experts(model, base) if beside_experts else decoded_weights(base)
        files = {name: read for name, read in files.items() if name not in without}
        for name, tensor in from_hub(model, files, places):
            place = places.get(name)
            if place is None or id(place) in done:
                continue
            if new is not None and name in tables:
                tensor = new.begin(tensor).to(dtype)
                ((_, rows),) = part.tensors([self._rows_of(name)])
                tensor[new.first : new.end] = rows
            if tensor.shape != place.shape:
                shapes = f"{name} is of shape {list(tensor.shape)}, its config.json asks for {list(place.shape)}"
                raise UserError(f"{base}: {shapes}", "give the config.json that belongs to the weights")
            done.add(id(place))
            if name in packed:  # the adapter was trained beside what fp8 makes of it
                tensor = decode_fp8(*encode_fp8(tensor), torch.bfloat16)
            if name in adapted:
                layer = name.removesuffix(".weight")
                (_, a), (_, b) = part.tensors([layer + A, layer + B])
                # In fp32: what the dtype takes is counted afterwards, and told.
                frozen, tensor = tensor, merge_adapter(tensor, a, b, self.model.adapter.alpha / self.model.adapter.rank)
                if rounding is not None:
                    rounding.add(frozen, tensor, dtype)
            yield name, tensor
        require_whole(base, places, done)

    def _rows_of(self, table: str) -> str:
        """Return the name of the trained rows of a table's new tokens: what is tied has those of the embedding."""
        embedding, _ = token_tables(self.hollow)
        name = (embedding if self.hollow.config.tie_word_embeddings else table).removesuffix(".weight")
        return f"{name}{ROWS}"

    def _another(self, name: str) -> UserError:
        return UserError(
            f"checkpoint {self.checkpoint.path} is not of the model that its config.json describes: {name} is not in both",
            "use the run's own config.json",
        )

    # Uses

    def require_shares(self, ranks: int) -> None:
        """Refuse ranks that cannot share this run's experts. Raises UserError."""
        if self.model.weights != "fp8-experts":
            raise UserError(f"{self.run.path} was not trained beside fp8-experts, which ranks could share", "leave ranks out")
        for module in self.hollow.modules():
            if holds_experts(module):
                ExpertGroup(0, ranks).own(module.get_parameter("gate_up_proj").shape[0])

    def load(self, device: torch.device, group: ExpertGroup | None = None) -> Any:
        """Return the model on a device, in the dtype that is fast there.

        Args:
            device: where it computes.
            group: the ranks that share its experts, where these were frozen in fp8; None: this one holds them all.
        """
        dtype = fast_dtype(device)
        name = next(short for short, long in DTYPES.items() if getattr(torch, long) == dtype)
        if self.model.weights == "fp8-experts" and self.base is not None:
            model, experts = sharing_model(self.config(name), self.base, device, dtype, group or ExpertGroup())
            fill_model(model, self._merged(self.base, dtype, model, experts))
            return model.eval()
        config = AutoConfig.for_model(**self.config(name))
        weights = dict(self.tensors(name))
        with without_bar():
            made: Any = type(self.hollow).from_pretrained(None, config=config, state_dict=weights, dtype=dtype)
        return made.to(device)


def _saved_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that files have, by name."""
    return {
        f"{name}.{key}": buffer
        for name, module in model.named_modules()
        for key, buffer in module._buffers.items()
        if buffer is not None and key not in module._non_persistent_buffers_set
    }


def _held_in_fp8(model: PreTrainedModel) -> set[str]:
    """Return the names of the weights that model.weights=fp8 freezes in fp8."""
    blocks = blocks_of(model)
    frozen = {id(layer) for layer in linears(blocks, "all")}
    named = {name: module for name, module in model.named_modules() if id(module) in frozen or holds_experts(module)}
    return {f"{name}.{key}" for name, module in named.items() for key in module._parameters if not key.endswith("bias")}


def _by_block(model: PreTrainedModel, weights: Iterable[tuple[str, Tensor]]) -> Iterator[list[tuple[str, Tensor]]]:
    """Yield weights that come in order with those of their block together: files may have its experts apart."""
    # Families call their blocks differently: the first one's name says how this one does.
    first = blocks_of(model)[0]
    root = next(name for name, module in model.named_modules() if module is first).rsplit(".", 1)[0]
    block = re.compile(rf"{re.escape(root)}\.(\d+)\.")
    for _, group in itertools.groupby(weights, lambda item: (found := block.match(item[0])) and found[1]):
        yield list(group)
