"""Experts' weights from a folder into a model that holds them in fp8 blocks: as they are stored, without bf16 in between.

Each rank reads the matrices of its own experts, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from windtunnel.model import PARTS, BlockFP8, expert_sources, holds_experts, read_stored, shared_experts_of
from windtunnel.recipe import UserError

from .decode import CODINGS, E4M3, encode_blocks, scale_values
from .entries import BLOCK, Choice, Entry, make_entries
from .quantization import read_quantization
from .work import Files, decoded_weights, is_coded

if TYPE_CHECKING:  # whoever evaluates a GPT comes by here too, and need not wait for it
    from transformers import PreTrainedModel


class StoredFP8:
    """Matrices of a model's folder as e4m3 codes and block scales.

    Attributes:
        names: of all tensors, as in a folder of bf16.
        block: rows and columns that share a scale.
        has_experts: whether routed experts are among what is stored in fp8.

    Raises:
        UserError: the folder is not whole, or its format is not known.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._entries: dict[str, Entry] = {}
        self._plain = {}
        self.block, self.has_experts = BLOCK, False
        if not is_coded(folder):
            self._plain = decoded_weights(folder)
            self.names = list(self._plain)
            return
        source = read_stored(folder)
        self._files = Files(folder, source.stamps)
        self._entries = {entry.outputs[0].name: entry for entry in make_entries(source, Choice())[0]}
        self.names = list(self._entries)
        # One tells for all: files hold their experts alike, and each is looked at when it is read.
        first = next((e for name, e in self._entries.items() if e.kind == "decode" and ".experts." in name), None)
        quantized = read_quantization(source)
        whole = quantized.by_row and not quantized.blocks
        if first is not None and first.coding == CODINGS["e4m3"] and not whole:  # else a scale for each row, or one for all
            self.block, self.has_experts = first.block, True

    def is_coded(self, name: str) -> bool:
        """Return whether a matrix is stored in fewer bits than bf16."""
        return name in self._entries and self._entries[name].kind == "decode"

    def read(self, name: str) -> tuple[Tensor, Tensor]:
        """Return a matrix: codes (R, C) e4m3 and scale (block rows, block columns) fp32; what is not coded is encoded now.

        Raises:
            UserError: it is coded in another way than in fp8 with these blocks.
        """
        entry = self._entries.get(name)
        if not self.is_coded(name):
            # A model in bf16 may be held in fp8 too: its experts are encoded as they are read.
            plain = self._plain[name]() if entry is None else self._files.tensor(entry.weight)
            codes, scale = encode_blocks(plain, self.block)
            return codes.view(E4M3), scale
        if entry is None or entry.scale is None or entry.coding != CODINGS["e4m3"] or entry.matrices != 1:
            raise self._otherwise(name, "in a way of its own" if entry is None else f"as {entry.weight.dtype}")
        # Another grid in the same buffer would be scales of other weights.
        if entry.block != self.block:
            raise self._otherwise(name, f"with a scale for each {entry.block[0]} x {entry.block[1]} weights")
        codes = self._files.bytes_of(entry.weight, 0, entry.weight.bytes).view(E4M3).view(entry.rows, entry.columns)
        return codes, scale_values(self._files.tensor(entry.scale)).reshape(entry.grid)

    def _otherwise(self, name: str, how: str) -> UserError:
        return UserError(
            f"model.weights: fp8-experts computes with fp8 in blocks, and {self._folder} holds {name} {how}",
            "convert it to bf16 first (windtunnel convert), or set model.weights: bf16",
        )


def has_coded_experts(folder: Path) -> bool:
    """Return whether a folder's routed experts are stored as fp8 in blocks. Raises UserError where it cannot be read."""
    return is_coded(folder) and StoredFP8(folder).has_experts


def block_of_experts(folder: Path | None) -> tuple[int, int]:
    """Return the rows and columns of a folder's experts that share a scale; DeepSeek-V3's without a folder. Raises UserError."""
    return BLOCK if folder is None else StoredFP8(folder).block


@torch.no_grad()
def load_experts(model: PreTrainedModel, folder: Path) -> set[str]:
    """Fill a model's shared experts; each rank reads its own. Returns the names of all experts' tensors in the files.

    Raises:
        UserError: experts are missing, of another shape, or coded in a way that is not known.
    """
    modules = shared_experts_of(model)
    if not modules:
        return set()
    stored = StoredFP8(folder)
    places = {f"{name}.{key}": (module, key) for name, module in modules.items() for key in module.shared_experts.shapes}
    sources = expert_sources(model, stored.names, places)
    for place, (module, key) in places.items():
        weights, own = module.weights(key), module.shared_experts.own
        for number, expert in enumerate(own):
            parts = sources.get(place, {}).get(expert, {})
            if len(parts) != weights.codes.size(1):
                raise UserError(f"{folder} has no weights for expert {expert} of {place}", "download it again")
            # What is one tensor of all experts here are one or two matrices (gate above up) of each in the files.
            for part, name in sorted(parts.items()):
                codes, scale = stored.read(name)
                if codes.shape != weights.codes.shape[2:]:
                    raise UserError(
                        f"{folder}: {name} is of shape {list(codes.shape)}, its config.json asks for "
                        f"{list(weights.codes.shape[2:])}",
                        "give the config.json that belongs to the weights",
                    )
                weights.codes[number, part].copy_(codes)
                weights.scale[number, part].copy_(scale)
    return {name for experts in sources.values() for parts in experts.values() for name in parts.values()}


def weights_beside_experts(model: PreTrainedModel, folder: Path) -> dict[str, Callable[[], Tensor]]:
    """Return what `decoded_weights` does, with experts as a model that holds them in fp8 blocks computes with them.

    Of experts that are stored so that is the same; others go through fp8 once.

    Args:
        model: whose experts they are, of any kind; its memory is not looked at.
        folder: with the weights.

    Raises:
        UserError: the folder is not whole, or its format is not known.
    """
    stored, readers = StoredFP8(folder), decoded_weights(folder)
    places = {f"{name}.{key}": None for name, module in model.named_modules() if holds_experts(module) for key in PARTS}
    sources = expert_sources(model, stored.names, places)
    # Those that are stored in fp8 are decoded as they are: through fp8 again they would lose a little more.
    for name in (name for experts in sources.values() for parts in experts.values() for name in parts.values()):
        if not stored.is_coded(name):
            readers[name] = partial(_through_fp8, readers[name], stored.block)
    return readers


def _through_fp8(read: Callable[[], Tensor], block: tuple[int, int]) -> Tensor:
    codes, scale = encode_blocks(read(), block)
    return BlockFP8(codes.view(E4M3)[None, None], scale[None, None], block).decode(0, 1, torch.bfloat16)[0]
