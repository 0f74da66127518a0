"""Adapters inside vLLM's workers: brought to vLLM as peft's files are, and what a rank then computes with, compared."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from .vllm_worker import Comparison, WeightReceipts, pieces_of, sampled

NAME, NUMBER = "policy", 1
"""What vLLM calls the learner's adapter."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Of adapters, that vLLM has room for."""
PREFIX = "base_model.model."
MEMORY = Path("/dev/shm")


def request(folder: str, *, anew: bool = False) -> Any:
    """Return what names the adapter to vLLM; `anew`: its files are to be read in place of those before."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(NAME, NUMBER, folder, load_inplace=anew)


class AdapterReceipts(WeightReceipts):
    """Workers whose weights stay, and that take adapters from the learner."""

    def windtunnel_receive_adapter(self, version: int, settings: dict[str, Any]) -> dict[str, Any]:
        """Take a version of the adapters from the learner.

        Args:
            version: of the learner.
            settings: of adapter_config.json.

        Returns:
            as `windtunnel_receive`.
        """
        receiver = self.windtunnel_receiver
        assert receiver is not None
        # Until all of it is in place: who asks in between must not take the old adapter for the new one.
        self.windtunnel_version = -1
        tensors = {name: tensor for bucket in receiver.receive(version) for name, tensor in bucket}
        self.windtunnel_adapt(tensors, settings)
        self.windtunnel_version = version
        worker: Any = self
        scale = settings["lora_alpha"] / settings["r"]
        found = compare_adapters(self._windtunnel_model(), tensors, scale, version)
        return {
            "rank": int(worker.rank), "version": self.windtunnel_version, **found, "tensors": receiver.tensors,
            "bytes": receiver.bytes,
        }  # fmt: skip

    def windtunnel_adapt(self, tensors: dict[str, Tensor], settings: dict[str, Any]) -> None:
        """Have vLLM read adapters in place of those before, from files that are nowhere but in memory."""
        worker: Any = self
        # vLLM reads adapters from files alone; in memory they cost no disk, and nothing is left of them.
        place = MEMORY if os.access(MEMORY, os.W_OK) else None
        with tempfile.TemporaryDirectory(dir=place) as folder:
            save_file({name: tensor.cpu() for name, tensor in tensors.items()}, Path(folder) / "adapter_model.safetensors")
            (Path(folder) / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
            worker.add_lora(request(folder, anew=True))


def compare_adapters(model: nn.Module, tensors: dict[str, Tensor], scale: float, version: int) -> dict[str, Any]:
    """Compare what a rank multiplies with, on sampled rows, with the adapters that came.

    Args:
        model: vLLM's, of one adapter.
        tensors: by peft's names.
        scale: of the adapters' output.
        version: of the weights.

    Returns:
        compared, wrong, unseen, found and expected; see `WeightReceipts.windtunnel_receipt`.
    """
    seen, unseen = Comparison(), sorted(tensors)
    for source, a, b, rows, columns in _held(model):
        names = f"{PREFIX}{source}.lora_A.weight", f"{PREFIX}{source}.lora_B.weight"
        if not all(name in tensors for name in names):
            continue
        given_a, given_b = (tensors[name].to(a.device) for name in names)
        rank = given_a.shape[0]
        # A rank of a row-parallel layer holds some columns of A, one of a column-parallel layer some rows of B.
        given_a = given_a if columns is None else given_a[:, slice(*columns)]
        # vLLM multiplies the scale into B when it loads: compared is what is multiplied with.
        given_b = given_b[slice(*rows)].to(b.dtype) * scale
        for name, held, given in (
            (names[0], a[:rank, : given_a.shape[1]], given_a), (names[1], b[: given_b.shape[0], :rank], given_b),
        ):  # fmt: skip
            some = sampled(given.shape[0], f"{version}/{name}")
            seen.add(name, held[some].cpu(), given[some].to(held.dtype).cpu())
            unseen.remove(name)
    return seen.to_json(unseen)


def _held(model: nn.Module) -> Iterator[tuple[str, Tensor, Tensor, tuple[int, int], tuple[int, int] | None]]:
    """Yield of each adapted layer's name in files: A (r, in) and B (out, r) of this rank, its rows of B and columns of A."""
    packed: dict[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    for prefix, module in model.named_modules():
        stacked: Any = getattr(module, "lora_a_stacked", None)
        base: Any = getattr(module, "base_layer", None)
        if not isinstance(stacked, tuple) or base is None:
            continue
        outer, _, last = prefix.rpartition(".")
        names = [f"{outer}.{part}" if outer else part for part in packed.get(last, [last])]
        pieces = list(pieces_of(base, "weight", base.weight, names))
        layer: Any = module
        # Where the two do not match it is not known which piece is which; the tensors then count as unseen.
        if len(pieces) == len(stacked):
            for piece, a, b in zip(pieces, stacked, layer.lora_b_stacked, strict=True):
                yield piece.source, a[0, 0], b[0, 0], (piece.begin, piece.begin + piece.rows), piece.columns
