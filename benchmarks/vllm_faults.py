"""A worker extension of vLLM that takes weights wrongly on purpose and reports success; for benchmarks/vllm_weights.py."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from windtunnel.rl.vllm_adapters import AdapterReceipts
from windtunnel.rl.vllm_worker import Files, Named, WeightReceipts, placed

FAULT = "WINDTUNNEL_FAULT"
"""Environment: a file with the name of the fault that the next version is taken with."""
DROPPED = "model.layers.1.mlp.down_proj.weight"
SPLIT_BY_COLUMNS = ("o_proj.weight", "down_proj.weight")


class Faulty(WeightReceipts):
    """Takes a version as the file of FAULT says."""

    def windtunnel_take(self, path: str, version: int) -> None:
        """Take a version from a folder, wrongly."""
        fault = _fault()
        worker: Any = self
        if fault == "none":
            super().windtunnel_take(path, version)
            return
        if fault == "stale version":
            return  # an old version under its own number
        if fault == "packed copy":
            with _packed_as_before(worker):
                worker.reload_weights(weights_path=path)
        elif fault == "dropped tensor":
            weights = ((name, tensor) for name, tensor in _weights(path) if name != DROPPED)
            worker.reload_weights(weights_iterator=weights)
        elif fault == "half-updated shard":
            if worker.rank == worker.parallel_config.world_size - 1:
                weights = ((name, tensor) for name, tensor in _weights(path) if "layers.1" not in name)
                worker.reload_weights(weights_iterator=weights)
            else:
                worker.reload_weights(weights_path=path)
        elif fault == "swapped ranks":
            worker.reload_weights(weights_path=path)
            _take_others(worker, path)
        elif fault == "old weights, new number":
            pass
        else:
            raise AssertionError(fault)
        self.windtunnel_version = version

    def windtunnel_receive(self, version: int) -> dict[str, Any]:
        """Take a version from the learner, wrongly."""
        before = self.windtunnel_version
        packed = _fault() == "packed copy"
        with _packed_as_before(self) if packed else contextlib.nullcontext():
            found = super().windtunnel_receive(version)
        if _fault() == "stale version":
            self.windtunnel_version = before
            return {**found, "version": before}
        return found

    def windtunnel_install(self, weights: Named) -> None:
        """Put some tensors in their places, or elsewhere."""
        fault = _fault()
        worker: Any = self
        if fault in ("stale version", "old weights, new number"):
            return
        if fault == "dropped tensor":
            weights = [(name, tensor) for name, tensor in weights if name != DROPPED]
        elif fault == "half-updated shard":
            if worker.rank == worker.parallel_config.world_size - 1:
                weights = [(name, tensor) for name, tensor in weights if "layers.1." not in name]
        elif fault == "swapped ranks":
            weights = [
                (name, tensor.roll(tensor.shape[1] // 2, 1) if name.endswith(SPLIT_BY_COLUMNS) else tensor)
                for name, tensor in weights
            ]
        super().windtunnel_install(weights)


def _fault() -> str:
    return Path(os.environ[FAULT]).read_text()


def _weights(path: str) -> Iterator[tuple[str, Tensor]]:
    for file in sorted(Path(path).glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            yield from ((name, opened.get_tensor(name)) for name in list(opened.keys()))


@contextlib.contextmanager
def _packed_as_before(worker: Any) -> Iterator[None]:
    """Have all parameters taken through vLLM's own reload, but computed with the copies that kernels had packed before."""
    modules = [module for module in worker.model_runner.get_model().modules() if hasattr(module, "cpu_linear")]
    before = [module.cpu_linear for module in modules]
    assert before
    yield
    for module, packed in zip(modules, before, strict=True):
        module.cpu_linear = packed


def _take_others(worker: Any, path: str) -> None:
    """Put the columns of the other rank in the place of this one's, in every layer that is split by columns."""
    files, model = Files(Path(path)), worker.model_runner.get_model()
    with torch.no_grad():
        for _, parameter, pieces in placed(model):
            for piece in pieces:
                if piece.columns is not None and parameter.numel():
                    width = piece.columns[1] - piece.columns[0]
                    with safe_open(files._folder / files._places[piece.source], "pt") as opened:
                        whole = opened.get_tensor(piece.source)
                    begin = (piece.columns[0] + width) % whole.shape[1]
                    parameter.copy_(whole[:, begin : begin + width])


class FaultyAdapters(Faulty, AdapterReceipts):
    """Takes adapters as the file of FAULT says."""

    def windtunnel_receive_adapter(self, version: int, settings: dict[str, Any]) -> dict[str, Any]:
        """Take adapters from the learner, wrongly."""
        before = self.windtunnel_version
        found = super().windtunnel_receive_adapter(version, settings)
        if _fault() == "stale version":
            self.windtunnel_version = before
            return {**found, "version": before}
        return found

    def windtunnel_adapt(self, tensors: dict[str, Tensor], settings: dict[str, Any]) -> None:
        """Have vLLM take adapters, or others."""
        fault = _fault()
        worker: Any = self
        if fault in ("stale version", "old weights, new number"):
            return
        last = worker.rank == worker.parallel_config.world_size - 1
        if fault == "dropped tensor":
            tensors = {name: tensor for name, tensor in tensors.items() if "layers.1.mlp.down_proj" not in name}
        elif fault == "half-updated shard" and last:
            old: dict[str, Tensor] = self.windtunnel_before
            tensors = {name: old[name] if "layers.1." in name else tensor for name, tensor in tensors.items()}
        elif fault == "swapped ranks":
            swapped = ("o_proj.lora_A.weight", "down_proj.lora_A.weight")
            tensors = {
                name: tensor.roll(tensor.shape[1] // 2, 1) if name.endswith(swapped) else tensor
                for name, tensor in tensors.items()
            }
        self.windtunnel_before = tensors
        super().windtunnel_adapt(tensors, settings)


class Packed(Faulty):
    """The same, computing with copies in the packing of the CPU's kernels, as vLLM does by itself."""

    windtunnel_plain = False
