"""What runs inside vLLM's workers, one a GPU: it takes weights, from a folder or from the learner, and says what its rank has.

vLLM fuses and splits weights as it loads them, so that none has its name and shape from the files. Here each of a rank's
parameters is compared with the rows and columns of the files, or of the tensors that came, that belong there by the kind of its
layer, on sampled rows. What lies right and is computed with otherwise (a copy in a kernel's own packing) only the canary shows.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from .receive import WeightReceiver
from .transfer import Invitation

Named = list[tuple[str, Tensor]]
ROWS = 8
"""Rows of each tensor that are compared, the first and the last among them."""
STARTER = "WINDTUNNEL_VLLM_PROCESS"
"""Environment: number of the process that has started vLLM."""
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


@dataclass(frozen=True)
class Piece:
    """A part of a rank's parameter: `rows` of it from `at` on are rows of the file's tensor `source` from `begin` on.

    Attributes:
        columns: of the file's tensor that this rank has; None: all.
    """

    source: str
    at: int
    begin: int
    rows: int
    columns: tuple[int, int] | None = None


def end_with(pid: int) -> None:
    """Have this process, and the group of `pid` if it is in that, end as soon as that process is gone.

    vLLM's own processes wait for ever for one that was killed, and keep their GPUs.
    """

    def watch() -> None:
        try:
            select.select([os.pidfd_open(pid)], [], [])
        except ProcessLookupError:  # gone before this one began
            pass
        except OSError:  # a kernel that cannot tell
            return
        whole = os.getpgrp() == pid
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL) if whole else os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="ends-with", daemon=True).start()


class WeightReceipts:
    """Methods that vLLM's `collective_rpc` finds in every worker (`worker_extension_cls`)."""

    windtunnel_version = -1
    windtunnel_receiver: WeightReceiver | None = None
    windtunnel_plain = True
    """On a CPU multiply with the parameters themselves, which are seen here, and not with copies that its kernels pack."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        """Make a worker; before it loads anything."""
        if starter := os.environ.get(STARTER):
            end_with(int(starter))
        if cls.windtunnel_plain:
            _multiply_plainly()
        return super().__new__(cls)

    def windtunnel_begin(self, version: int) -> None:
        """Take note of the version of the weights that the worker was started with."""
        self.windtunnel_version = version

    def windtunnel_take(self, path: str, version: int) -> None:
        """Load a published version through vLLM's own reload, which packs weights anew as it did at the start."""
        self.windtunnel_version = -1
        self.reload_weights(weights_path=path)  # type: ignore[attr-defined]
        self.windtunnel_version = version

    def windtunnel_receipt(self, path: str, version: int) -> dict[str, Any]:
        """Return what this rank has of a published version.

        Returns:
            rank; version: that it took last; compared: parameters; wrong: those that are not the files'; unseen: those whose
            place in the files is not known here, or whose values vLLM keeps elsewhere; found, expected: digests of the sampled
            values.
        """
        return self._windtunnel_compared(Files(Path(path)), version)

    def windtunnel_join(self, invitation: dict[str, Any]) -> None:
        """Join a learner's group, to receive weights from it."""
        worker: Any = self
        self.windtunnel_receiver = None
        self.windtunnel_receiver = WeightReceiver(Invitation(**invitation), int(worker.rank), worker.device)

    def windtunnel_receive(self, version: int) -> dict[str, Any]:
        """Take a version from the learner, through vLLM's loading layer by layer.

        Returns:
            as `windtunnel_receipt`, where the files are the tensors that came; and tensors, bytes: that came.
        """
        receiver = self.windtunnel_receiver
        assert receiver is not None
        self.windtunnel_version = -1
        # Before the first bucket: vLLM packs weights as they come, and the names of its parameters are known now.
        came = Samples(self._windtunnel_model(), version)
        with self._windtunnel_reloading():
            for bucket in receiver.receive(version):
                came.keep(bucket)
                self.windtunnel_install(bucket)
        self.windtunnel_version = version
        return {**self._windtunnel_compared(came, version), "tensors": receiver.tensors, "bytes": receiver.bytes}

    def windtunnel_install(self, weights: Named) -> None:
        """Put some tensors of a version in their places."""
        self._windtunnel_model().load_weights(weights)

    @contextlib.contextmanager
    def _windtunnel_reloading(self) -> Iterator[None]:
        """Have vLLM take weights as files have them, and pack each layer's anew as soon as it is whole."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        worker: Any = self
        model = self._windtunnel_model()
        initialize_layerwise_reload(model)
        try:
            yield
        finally:  # what has not come is as it was, so that the next version finds whole layers
            finalize_layerwise_reload(model, worker.model_runner.model_config)

    def _windtunnel_model(self) -> Any:
        return self.model_runner.get_model()  # type: ignore[attr-defined]

    def _windtunnel_compared(self, wanted: Files | Samples, version: int) -> dict[str, Any]:
        rank = int(self.rank)  # type: ignore[attr-defined]
        return {"rank": rank, "version": self.windtunnel_version, **compare(self._windtunnel_model(), wanted, version)}


def _multiply_plainly() -> None:
    from vllm.model_executor.layers import utils

    def plain(layer: nn.Module, remove_weight: bool) -> None:
        layer.cpu_linear = lambda x, weight, bias: nn.functional.linear(x, weight, bias)  # type: ignore[assignment]

    utils.dispatch_cpu_unquantized_gemm = plain


class Files:
    """The tensors of a Hugging Face folder, by rows."""

    def __init__(self, folder: Path) -> None:
        index = folder / INDEX
        if index.is_file():
            self._places: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        else:
            with safe_open(folder / SINGLE, "pt") as file:
                self._places = dict.fromkeys(file.keys(), SINGLE)
        self._folder = folder

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def read(self, piece: Piece, rows: list[int]) -> Tensor:
        """Return some of a piece's rows (n, ...)."""
        with safe_open(self._folder / self._places[piece.source], "pt") as file:
            tensor = file.get_slice(piece.source)
            found = [tensor[piece.begin + row : piece.begin + row + 1] for row in rows]
        whole = torch.cat(found)
        return whole if piece.columns is None else whole[:, slice(*piece.columns)]


class Samples:
    """Of tensors that pass by, the rows that a rank's parameters will be compared with.

    Args:
        model: whose parameters; before it takes the tensors.
        version: of the weights.
    """

    def __init__(self, model: nn.Module, version: int) -> None:
        self._version = version
        self._pieces: dict[str, list[Piece]] = {}
        for _, _, pieces in placed(model):
            for piece in pieces:
                self._pieces.setdefault(piece.source, []).append(piece)
        self._kept: dict[Piece, Tensor] = {}
        self._names: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def keep(self, weights: Named) -> None:
        """Keep what is wanted of some tensors."""
        for name, tensor in weights:
            self._names.add(name)
            for piece in self._pieces.get(name, ()):
                # Rows that change with the version: over some versions all of a tensor is looked at.
                rows = [piece.begin + row for row in sampled(piece.rows, f"{self._version}/{name}")]
                if rows and rows[-1] < tensor.shape[0]:
                    some = tensor[rows]
                    self._kept[piece] = some if piece.columns is None else some[:, slice(*piece.columns)].clone()

    def read(self, piece: Piece, rows: list[int]) -> Tensor:
        """Return some of a piece's rows (n, ...), on the host; nothing where they never passed."""
        found = self._kept.get(piece)
        return torch.empty(0) if found is None else found.cpu()


def compare(model: nn.Module, files: Files | Samples, version: int) -> dict[str, Any]:
    """Compare a rank's parameters with the files; see `WeightReceipts.windtunnel_receipt`."""
    seen, unseen = Comparison(), []
    for name, parameter, pieces in placed(model):
        known = bool(pieces) and all(piece.source in files for piece in pieces)
        if not known or not parameter.numel() or parameter.shape[0] < max(piece.at + piece.rows for piece in pieces):
            unseen.append(name)
            continue
        for piece in pieces:
            rows = sampled(piece.rows, f"{version}/{piece.source}")
            found = parameter.detach()[[piece.at + row for row in rows]].cpu()
            seen.add(name, found, files.read(piece, rows).to(found.dtype))
    return seen.to_json(unseen)


class Comparison:
    """Rows that a rank has, compared with those that it should have. Digests show that ranks looked at the same, and at what."""

    def __init__(self) -> None:
        self._found, self._expected = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)
        self._same: dict[str, bool] = {}

    def add(self, name: str, found: Tensor, expected: Tensor) -> None:
        """Compare some rows of a parameter, on the host and of one dtype."""
        alike = found.shape == expected.shape and torch.equal(found, expected)
        self._same[name] = self._same.get(name, True) and alike
        for digest, rows in ((self._found, found), (self._expected, expected)):
            digest.update(rows.contiguous().view(torch.uint8).numpy().tobytes())

    def to_json(self, unseen: list[str]) -> dict[str, Any]:
        """Return what `WeightReceipts.windtunnel_receipt` says of all of them."""
        wrong = [name for name, same in self._same.items() if not same]
        return {
            "compared": len(self._same), "wrong": wrong, "unseen": unseen, "found": self._found.hexdigest(),
            "expected": self._expected.hexdigest(),
        }  # fmt: skip


def sampled(rows: int, key: str) -> list[int]:
    """Return up to ROWS rows: the first, the last, and others that change with the key."""
    draw = torch.Generator().manual_seed(int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest()))
    some = torch.randint(rows, (ROWS - 2,), generator=draw).tolist() if rows else []
    return sorted({0, rows - 1, *some}) if rows else []


def placed(model: nn.Module) -> Iterator[tuple[str, Tensor, list[Piece]]]:
    """Yield every parameter with the pieces of the files that it is made of; none where that is not known."""
    seen: set[int] = set()
    packed: dict[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    for path, module in model.named_modules():
        prefix = path.removesuffix(".base_layer")  # what has an adapter beside it
        for key, parameter in module._parameters.items():
            if parameter is None or id(parameter) in seen:  # a tied head is the embedding
                continue
            seen.add(id(parameter))
            outer, _, last = prefix.rpartition(".")
            names = [f"{outer}.{part}.{key}" if outer else f"{part}.{key}" for part in packed.get(last, [last])]
            yield f"{prefix}.{key}", parameter, list(pieces_of(module, key, parameter, names))


def pieces_of(module: nn.Module, key: str, parameter: Tensor, names: list[str]) -> Iterator[Piece]:
    """Yield where the files have what a layer holds; vLLM's kinds of layers are told by the names of their classes."""
    if not parameter.ndim:
        return
    kinds = {kind.__name__ for kind in type(module).__mro__}
    rank, ranks = int(getattr(module, "tp_rank", 0)), int(getattr(module, "tp_size", 1))
    if "QKVParallelLinear" in kinds:
        layer: Any = module
        keys = layer.num_kv_heads * layer.head_size, layer.num_kv_heads * layer.v_head_size
        sizes = [layer.num_heads * layer.head_size, *keys]
        # With fewer key heads than ranks several ranks hold the same one.
        parts = [rank, *(rank // layer.num_kv_head_replicas,) * 2]
        yield from _stacked(names, sizes, parts)
    elif "MergedColumnParallelLinear" in kinds:
        yield from _stacked(names, [size // ranks for size in module.output_sizes], [rank] * len(names))  # type: ignore[union-attr]
    elif "ColumnParallelLinear" in kinds:
        yield from _stacked(names, [parameter.shape[0]], [rank])
    elif "RowParallelLinear" in kinds and key == "weight":
        width = parameter.shape[1] if parameter.ndim == 2 else 0
        yield Piece(names[0], 0, 0, parameter.shape[0], (rank * width, (rank + 1) * width))
    elif "VocabParallelEmbedding" in kinds:
        # Without rows of padding, which no file has.
        own: Any = module.shard_indices
        yield Piece(names[0], 0, own.org_vocab_start_index, own.org_vocab_end_index - own.org_vocab_start_index)
    else:
        yield from _stacked(names, [parameter.shape[0]], [0])


def _stacked(names: list[str], sizes: list[int], parts: list[int]) -> Iterator[Piece]:
    """Yield tensors that lie below each other, of each of which this rank has one part of so many rows."""
    if len(names) != len(sizes):
        return
    at = 0
    for name, size, part in zip(names, sizes, parts, strict=True):
        yield Piece(name, at, part * size, size)
        at += size
