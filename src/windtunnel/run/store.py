"""Checkpoints on disk: finding, verifying and reading them. Writing is in `writer`, deleting in `retention`.

A checkpoint is a folder `step-00001234/` (or `step-00001234.2/` when that step was saved again) that
appears by one rename, so a folder of that name is complete unless the disk damaged it later:

    checkpoint.json                      step, world, validation loss, trainer state, size and checksum of each file
    model.safetensors                    fp32 weights
    optimizer-00000-of-00004.safetensors one per rank; keys 'parameter|state|start:stop' over the flattened tensor
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from windtunnel.recipe import UserError

from .files import write_atomic
from .tensors import Entry, Written, checksum, read_flat, read_header

FORMAT = 1
MODEL_FILE = "model.safetensors"
MANIFEST = "checkpoint.json"
_FOLDER = re.compile(r"step-(\d{8,})(?:\.(\d+))?")
_TEMPORARY = re.compile(r"step-.*\.tmp-.*")


class DamagedCheckpoint(UserError):
    """A checkpoint's files are missing, changed or malformed."""


@dataclass(frozen=True)
class _Shard:
    start: int
    stop: int
    path: Path
    entry: Entry


@dataclass
class Checkpoint:
    """One complete checkpoint folder.

    Attributes:
        step: optimizer steps done when it was saved.
        validation_loss: nats per token at that step, None if it was not measured.
        created: seconds since the epoch.
        state: what the trainer stored (JSON).
        files: size and checksum of every file it consists of.
    """

    path: Path
    step: int
    world: int
    validation_loss: float | None
    created: float
    state: dict[str, Any]
    files: dict[str, Written]
    _index: dict[tuple[str, str], list[_Shard]] | None = field(default=None, repr=False)

    @property
    def bytes(self) -> int:
        """Bytes on disk of all files, checkpoint.json aside."""
        return sum(f.bytes for f in self.files.values())

    @property
    def has_optimizer(self) -> bool:
        """Whether optimizer states are still there (older checkpoints keep weights only)."""
        return any(name.startswith("optimizer-") for name in self.files)

    @property
    def weights_file(self) -> Path:
        """The safetensors file with the weights."""
        return self.path / MODEL_FILE

    def weights(self) -> dict[str, np.ndarray]:
        """Weights by parameter name, fp32. Raises DamagedCheckpoint."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            return load_file(self.weights_file)
        except (OSError, SafetensorError) as error:
            raise DamagedCheckpoint(f"checkpoint {self.path}: {MODEL_FILE} cannot be read: {error}") from None

    def optimizer_keys(self) -> list[tuple[str, str, int]]:
        """(parameter, state name, elements) of every optimizer state, whatever ranks hold it."""
        return sorted((*key, max(s.stop for s in shards)) for key, shards in self._shards().items())

    def optimizer_slice(self, parameter: str, state: str, start: int, stop: int) -> np.ndarray:
        """Elements start:stop of a flattened optimizer state, 1-D, put together from the shards that hold it.

        Raises:
            DamagedCheckpoint: no shards cover that range.
        """
        shards = self._shards().get((parameter, state), [])
        if not shards:
            raise DamagedCheckpoint(f"checkpoint {self.path}: no optimizer state {state!r} of {parameter!r}")
        out = np.empty(stop - start, np.dtype(shards[0].entry.dtype))
        at = start
        for shard in shards:  # sorted by start
            if shard.start <= at < shard.stop and at < stop:
                end = min(stop, shard.stop)
                out[at - start : end - start] = self._read(shard, at - shard.start, end - shard.start)
                at = end
        if at != stop:
            raise DamagedCheckpoint(f"checkpoint {self.path}: {parameter!r} {state!r} has no elements {at}:{stop}")
        return out

    def verify(self) -> list[str]:
        """What is wrong with the files: sizes first, then checksums. Empty when all is well."""
        problems = self.wrong_sizes()
        if problems:
            return problems
        with ThreadPoolExecutor(max_workers=4) as pool:
            found = pool.map(lambda name: self._verify_file(name), self.files)
            return [problem for problem in found if problem]

    def wrong_sizes(self) -> list[str]:
        """Files that are missing or of another size than written; reads no contents."""
        problems = []
        for name, expected in self.files.items():
            try:
                size = (self.path / name).stat().st_size
            except OSError as error:
                problems.append(f"{self.path.name}/{name}: {error.strerror or error}")
                continue
            if size != expected.bytes:
                problems.append(f"{self.path.name}/{name}: {size} bytes, {expected.bytes} were written")
        return problems

    def _verify_file(self, name: str) -> str | None:
        try:
            found = checksum(self.path / name)
        except OSError as error:
            return f"{self.path.name}/{name}: {error.strerror or error}"
        return None if found == self.files[name] else f"{self.path.name}/{name}: checksum differs, the file has changed"

    def _read(self, shard: _Shard, start: int, stop: int) -> np.ndarray:
        try:
            values = read_flat(shard.path, shard.entry, start, stop)
        except OSError as error:
            raise DamagedCheckpoint(f"checkpoint file {shard.path} cannot be read: {error}") from None
        if len(values) != stop - start:
            raise DamagedCheckpoint(f"checkpoint file {shard.path} is shorter than its header says")
        return values

    def _shards(self) -> dict[tuple[str, str], list[_Shard]]:
        if self._index is None:
            index: dict[tuple[str, str], list[_Shard]] = {}
            for name in sorted(n for n in self.files if n.startswith("optimizer-")):
                try:
                    entries = read_header(self.path / name)
                except (OSError, ValueError, KeyError, TypeError) as error:
                    raise DamagedCheckpoint(f"checkpoint {self.path}: {name} cannot be read: {error}") from None
                for key, entry in entries.items():
                    parameter, state, extent = key.rsplit("|", 2)
                    start, stop = (int(x) for x in extent.split(":"))
                    index.setdefault((parameter, state), []).append(_Shard(start, stop, self.path / name, entry))
            for shards in index.values():
                shards.sort(key=lambda s: (s.start, -s.stop))
            self._index = index
        return self._index


class CheckpointStore:
    """The folder of a run's checkpoints.

    Reading changes nothing, so evaluators and servers may open it while training writes.

    Args:
        folder: `checkpoints/` of a run; made if missing.
        on_problem: told once about each damaged checkpoint that was passed over.
    """

    def __init__(self, folder: Path | str, on_problem: Callable[[str], None] | None = None) -> None:
        self.folder = Path(folder)
        self._on_problem = on_problem
        self._verified: dict[Path, tuple[tuple[int, ...], list[str]]] = {}
        self._told: set[str] = set()
        self.problems: list[str] = []

    def all(self) -> list[Checkpoint]:
        """Checkpoints whose checkpoint.json is sound, oldest first; the latest save of each step."""
        found: dict[int, tuple[int, Checkpoint]] = {}
        for number, path in self._folders():
            try:
                checkpoint = read_checkpoint(path)
            except DamagedCheckpoint as error:
                self._tell(error.message)
                continue
            if checkpoint.step not in found or number > found[checkpoint.step][0]:
                found[checkpoint.step] = (number, checkpoint)
        return [found[step][1] for step in sorted(found)]

    def shadowed_by(self, checkpoints: Sequence[Checkpoint]) -> list[Path]:
        """Sound folders of the same steps as these, which were saved earlier."""
        current = {c.path for c in checkpoints}
        steps = {c.step for c in checkpoints}
        return [path for _, path in self._folders() if path not in current and _step_of(path) in steps and _sound(path)]

    def newest_good(self, before: int | None = None, *, with_optimizer: bool = False) -> Checkpoint | None:
        """The newest checkpoint that verifies, of a step < `before`; None if there is none."""
        for checkpoint in reversed(self._every()):
            if before is not None and checkpoint.step >= before:
                continue
            if with_optimizer and not checkpoint.has_optimizer:
                continue
            if self.is_good(checkpoint):
                return checkpoint
        return None

    def best(self) -> Checkpoint | None:
        """The checkpoint with the lowest validation loss that verifies; the newest good one if none was measured."""
        scored = [c for c in self._every() if c.validation_loss is not None]
        for checkpoint in sorted(scored, key=lambda c: (c.validation_loss, -c.step)):
            if self.is_good(checkpoint):
                return checkpoint
        return self.newest_good()

    def at(self, step: int) -> Checkpoint:
        """The verified checkpoint of a step. Raises UserError naming those there are."""
        for checkpoint in reversed(self._every()):
            if checkpoint.step == step and self.is_good(checkpoint):
                return checkpoint
        there = ", ".join(str(c.step) for c in self.all()) or "none"
        raise UserError(f"{self.folder}: no good checkpoint of step {step}", f"steps that were kept: {there}")

    def free_name(self, step: int) -> Path:
        """The folder the next save of a step gets."""
        numbers = [number for number, path in self._folders() if _step_of(path) == step]
        name = f"step-{step:08d}"
        return self.folder / (name if not numbers else f"{name}.{max(numbers) + 1}")

    def free_bytes(self) -> int:
        """Bytes free to this user on the disk that holds the checkpoints."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return shutil.disk_usage(self.folder).free

    def clean_stale(self) -> list[str]:
        """Remove what dead writers left half done. Only for the process that holds the run's lock."""
        removed = []
        for path in self.folder.glob("step-*"):
            if _TEMPORARY.fullmatch(path.name) and path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
                removed.append(path.name)
        return removed

    def _every(self) -> list[Checkpoint]:
        """Sound checkpoints including earlier saves of the same step, oldest first."""
        found = []
        for number, path in self._folders():
            try:
                found.append((number, read_checkpoint(path)))
            except DamagedCheckpoint as error:
                self._tell(error.message)
        return [c for _, c in sorted(found, key=lambda item: (item[1].step, item[0]))]

    def _folders(self) -> list[tuple[int, Path]]:
        try:
            names = [(m, p) for p in self.folder.iterdir() if (m := _FOLDER.fullmatch(p.name)) and p.is_dir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"checkpoint folder {self.folder} cannot be read: {error.strerror or error}") from None
        return sorted((int(m[2] or 1), p) for m, p in names)

    def is_good(self, checkpoint: Checkpoint) -> bool:
        """Whether every file is what was written. Read once; again only when a file's size or time changed."""
        stamp = _stamp(checkpoint)
        known = self._verified.get(checkpoint.path)
        if known is None or known[0] != stamp:
            known = (stamp, checkpoint.verify())
            self._verified[checkpoint.path] = known
        for problem in known[1]:
            self._tell(f"damaged checkpoint passed over: {problem}")
        return not known[1]

    def _tell(self, problem: str) -> None:
        if problem not in self._told:
            self._told.add(problem)
            self.problems.append(problem)
            if self._on_problem:
                self._on_problem(problem)


def read_checkpoint(path: Path) -> Checkpoint:
    """Parse a folder's checkpoint.json. Raises DamagedCheckpoint."""
    try:
        data = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if data["checksum"] != _manifest_checksum(data):
            raise ValueError("checksum differs, the file has changed")
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']}, this version reads {FORMAT}")
        files = {name: Written(item["bytes"], item["checksum"]) for name, item in data["files"].items()}
        return Checkpoint(path, data["step"], data["world"], data["validation_loss"], data["created"], data["state"], files)
    except OSError as error:
        raise DamagedCheckpoint(f"damaged checkpoint {path}: {MANIFEST}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpoint(f"damaged checkpoint {path}: {MANIFEST}: {error}") from None


def write_manifest(checkpoint: Checkpoint, folder: Path) -> None:
    """Write checkpoint.json into a folder, atomically and durably. Raises OSError."""
    loss = checkpoint.validation_loss
    data: dict[str, Any] = {
        "format": FORMAT,
        "step": checkpoint.step,
        "world": checkpoint.world,
        "validation_loss": loss if loss is not None and math.isfinite(loss) else None,
        "created": checkpoint.created,
        "state": checkpoint.state,
        "files": {name: {"bytes": f.bytes, "checksum": f.checksum} for name, f in sorted(checkpoint.files.items())},
    }
    data["checksum"] = _manifest_checksum(data)
    write_atomic(folder / MANIFEST, json.dumps(data, indent=1) + "\n")


def optimizer_file(rank: int, world: int) -> str:
    """File name of a rank's optimizer states."""
    return f"optimizer-{rank:05d}-of-{world:05d}.safetensors"


def _manifest_checksum(data: dict[str, Any]) -> str:
    rest = {key: value for key, value in data.items() if key != "checksum"}
    return str(xxhash.xxh3_128_hexdigest(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()))


def _step_of(path: Path) -> int:
    match = _FOLDER.fullmatch(path.name)
    assert match
    return int(match[1])


def _sound(path: Path) -> bool:
    try:
        read_checkpoint(path)
    except DamagedCheckpoint:
        return False
    return True


def _stamp(checkpoint: Checkpoint) -> tuple[int, ...]:
    """Changes whenever a file of the checkpoint was replaced or rewritten."""
    stamp: list[int] = []
    for name in sorted(checkpoint.files):
        try:
            found = (checkpoint.path / name).stat()
            stamp += [found.st_ino, found.st_size, found.st_mtime_ns]
        except OSError:
            stamp.append(-1)
    return tuple(stamp)
