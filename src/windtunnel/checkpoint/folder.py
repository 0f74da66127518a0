"""A checkpoint's folder on disk: what is in it, and whether it is intact. No torch.

A checkpoint is a folder `step-00001234/` (or `step-00001234.2/` when that step was saved again). It
appears by one rename, so a folder of that name is complete unless the disk damaged it later:

    checkpoint.json          step, losses, trainer state, size and checksum of every file
    model/.metadata          PyTorch's Distributed Checkpoint (DCP) of the weights: `.metadata` says which
    model/__0_0.distcp       tensor's which box lies where, and every rank wrote one file of its own boxes
    optimizer/...            the same of everything else that going on needs; older checkpoints lose it

Each of `model/` and `optimizer/` is a DCP folder that `torch.distributed.checkpoint` reads by itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from windtunnel.files import write_atomic_or_over
from windtunnel.recipe import UserError

if TYPE_CHECKING:
    from .tensors import Part

FORMAT = 2
MANIFEST = "checkpoint.json"
MODEL, OPTIMIZER = "model", "optimizer"
BLOCK = 4 << 20


class DamagedCheckpoint(UserError):
    """A checkpoint's files are missing, changed or malformed."""


@dataclass(frozen=True)
class Written:
    """What a file must look like: its size in bytes and the hex xxh3_128 of all of them."""

    bytes: int
    checksum: str

    def to_json(self) -> dict[str, Any]:
        """Return both fields."""
        return {"bytes": self.bytes, "checksum": self.checksum}


def checksum(path: Path) -> Written:
    """Return the size and checksum of a file as it is on disk. Raises OSError."""
    digest, size = xxhash.xxh3_128(), 0
    # One buffer for all blocks: a checkpoint of hundreds of gigabytes is hashed at the disk's pace.
    buffer = memoryview(bytearray(BLOCK))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            size += count
    return Written(size, digest.hexdigest())


def differing_file(folder: Path, name: str, expected: Written, *, sizes_only: bool = False) -> str | None:
    """Say what is wrong with a file: missing, of another size, of other content. None: it is as it was written."""
    path = folder / name
    try:
        size = path.stat().st_size
        if size != expected.bytes:
            return f"{folder.name}/{name}: {size:,} bytes, {expected.bytes:,} were written"
        same = sizes_only or checksum(path) == expected
        return None if same else f"{folder.name}/{name}: checksum differs, the file has changed"
    except OSError as error:
        return f"{folder.name}/{name}: {error.strerror or error}"


@dataclass
class Checkpoint:
    """One complete checkpoint folder.

    Attributes:
        step: optimizer steps done when it was saved.
        world: ranks that saved it.
        validation_loss: nats per token measured at that step, None if it was not measured there.
        near_loss: nats per token of the last validation until then, whatever its step.
        score, near_score: likewise the share of held-out answers that are right, where they decide what is best.
        created: seconds since the epoch.
        state: what the trainer stored (JSON).
        config: files that describe the model, by name, as JSON: `shape.json` or `config.json`.
        beside: files of the run folder that belong to it, the tokenizer's for instance.
        files: size and checksum of every file it consists of, by path within the folder.
    """

    path: Path
    step: int
    world: int
    created: float
    state: dict[str, Any]
    files: dict[str, Written]
    validation_loss: float | None = None
    near_loss: float | None = None
    config: dict[str, Any] = field(default_factory=dict)
    beside: dict[str, Written] = field(default_factory=dict)
    score: float | None = None
    near_score: float | None = None

    @property
    def bytes(self) -> int:
        """Return the bytes on disk of all files, checkpoint.json aside."""
        return sum(f.bytes for f in self.files.values())

    @property
    def has_optimizer(self) -> bool:
        """Return whether the optimizer's states are still there (older checkpoints keep weights only)."""
        return f"{OPTIMIZER}/.metadata" in self.files

    @property
    def loss(self) -> float | None:
        """Return the loss by which checkpoints are compared: measured at its step, else by the last validation before it."""
        return self.validation_loss if self.validation_loss is not None else self.near_loss

    @property
    def standing(self) -> tuple[float, bool, float, bool, int, float]:
        """Return what sorts the best checkpoint first: by held-out answers where they were judged, then by loss, then the newest.

        One saved between two measurements counts as the one before it: were it left out because its own is not known, a
        damaged best one would be replaced by one of long ago.
        """
        # Answers before losses: a lower loss with worse answers is what fine-tuning too long looks like.
        score = self.score if self.score is not None else self.near_score
        by_score = (math.inf if score is None else -score, self.score is None)
        by_loss = (math.inf if self.loss is None else self.loss, self.validation_loss is None)
        return (*by_score, *by_loss, -self.step, -self.created)

    def __str__(self) -> str:
        """Return its step and what was measured there."""
        parts = [f"step {self.step:,}"]
        # In fine-tuning the share that is right, in reinforcement learning the mean reward.
        parts += [f"{self.score:.4g} on held-out answers"] if self.score is not None else []
        parts += [f"validation loss {self.validation_loss:.4f}"] if self.validation_loss is not None else []
        return ", ".join(parts)

    def verify(self) -> list[str]:
        """Say what is wrong with the files: sizes first, then checksums. Empty when all is well."""
        # A truncated file, the usual damage, is found without reading gigabytes of the others.
        if sizes := [problem for item in self.files.items() if (problem := differing_file(self.path, *item, sizes_only=True))]:
            return sizes
        with ThreadPoolExecutor(max_workers=4) as pool:
            found = pool.map(lambda item: differing_file(self.path, *item), self.files.items())
            return [problem for problem in found if problem]

    # Reading tensors needs torch, which looking at folders does not.

    def part(self, name: str = MODEL) -> Part:
        """Open the weights or the optimizer's states for reading. Raises DamagedCheckpoint; UserError if it has none."""
        from .tensors import Part

        return Part(self, name)

    def load(self, values: Mapping[str, Any], part: str = MODEL) -> None:
        """Fill `values` (Tensors, DTensors, Slices) in place; see `Part.load`."""
        self.part(part).load(values)

    def weights(self) -> dict[str, Any]:
        """Return all weights as whole tensors on the host: for models that fit. Raises DamagedCheckpoint."""
        return dict(self.part().tensors())


def read_checkpoint(path: Path) -> Checkpoint:
    """Parse a folder's checkpoint.json.

    Raises:
        DamagedCheckpoint: it is missing, changed or malformed.
        UserError: another version of windtunnel wrote it.
    """
    try:
        data = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        # Before the format is looked at: a file that was changed by hand may say anything.
        if data["checksum"] != _manifest_checksum(data):
            raise ValueError("checksum differs, the file has changed")
        if data["format"] == FORMAT:
            return Checkpoint(
                path, data["step"], data["world"], data["created"], data["state"], _written(data["files"]),
                data["validation_loss"], data["near_loss"], data["config"], _written(data["beside"]),
                data.get("score"), data.get("near_score"),
            )  # fmt: skip
        # Refused rather than guessed at: weights under another version's names would load as something else.
        older = data["format"] < FORMAT
    except NotADirectoryError:
        raise DamagedCheckpoint(f"damaged checkpoint {path}: a file is in the place of its folder") from None
    except OSError as error:
        raise DamagedCheckpoint(f"damaged checkpoint {path}: {MANIFEST}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpoint(f"damaged checkpoint {path}: {MANIFEST}: {error}") from None
    raise UserError(
        f"checkpoint {path} was written by {'an older' if older else 'a newer'} version of windtunnel "
        f"(format {data['format']}; this version reads {FORMAT})",
        "finish or export the run with the version that wrote it (`versions` in its manifest.json), or train a new run",
    )


def write_manifest(checkpoint: Checkpoint, folder: Path) -> None:
    """Write checkpoint.json into a folder, durably; with fewer files than before also on a full disk. Raises OSError."""
    data: dict[str, Any] = {
        "format": FORMAT,
        "step": checkpoint.step,
        "world": checkpoint.world,
        "validation_loss": _finite(checkpoint.validation_loss),
        "near_loss": _finite(checkpoint.near_loss),
        "score": checkpoint.score,
        "near_score": checkpoint.near_score,
        "created": checkpoint.created,
        "state": checkpoint.state,
        "config": checkpoint.config,
        "beside": {name: f.to_json() for name, f in sorted(checkpoint.beside.items())},
        "files": {name: f.to_json() for name, f in sorted(checkpoint.files.items())},
    }
    data["checksum"] = _manifest_checksum(data)
    write_atomic_or_over(folder / MANIFEST, json.dumps(data, indent=1) + "\n")


def _written(files: Mapping[str, Any]) -> dict[str, Written]:
    return {name: Written(item["bytes"], item["checksum"]) for name, item in files.items()}


def _finite(loss: float | None) -> float | None:
    # JSON has no NaN, and no checkpoint is the best by one.
    return loss if loss is not None and math.isfinite(loss) else None


def _manifest_checksum(data: dict[str, Any]) -> str:
    # Of the content in one fixed form, not of the file: indentation and the order of keys are nobody's damage.
    rest = {key: value for key, value in data.items() if key != "checksum"}
    return str(xxhash.xxh3_128_hexdigest(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()))
