"""Checkpoint folders on disk: what is in one, whether it is intact, and which of a run's to use. No torch.

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
import re
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import xxhash

from windtunnel.files import write_atomic_or_over
from windtunnel.recipe import UserError
from windtunnel.run import RunFolder

if TYPE_CHECKING:
    from .tensors import Part

FORMAT = 2
MANIFEST = "checkpoint.json"
MODEL, OPTIMIZER = "model", "optimizer"
BLOCK = 4 << 20
_FOLDER = re.compile(r"step-(\d{8,})(?:\.(\d+))?")
_TEMPORARY = re.compile(r"step-.*\.tmp-.*")

Which = Literal["best", "newest"] | int


class DamagedCheckpoint(UserError):
    """A checkpoint's files are missing, changed or malformed."""


class NoGoodCheckpoint(UserError):
    """No checkpoint is left that could be used. The CLI exits with 1."""

    exit_code = 1


@dataclass(frozen=True)
class Written:
    """What a file must look like: its size in bytes and the hex xxh3_128 of all of them."""

    bytes: int
    checksum: str

    def to_json(self) -> dict[str, Any]:
        """Both fields."""
        return {"bytes": self.bytes, "checksum": self.checksum}


def checksum(path: Path) -> Written:
    """Return the size and checksum of a file as it is on disk. Raises OSError."""
    digest, size = xxhash.xxh3_128(), 0
    buffer = memoryview(bytearray(BLOCK))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            size += count
    return Written(size, digest.hexdigest())


def differing_file(folder: Path, name: str, expected: Written) -> str | None:
    """Say what is wrong with a file: missing, of another size, of other content. None: it is as it was written."""
    path = folder / name
    try:
        size = path.stat().st_size
        if size != expected.bytes:
            return f"{folder.name}/{name}: {size:,} bytes, {expected.bytes:,} were written"
        return None if checksum(path) == expected else f"{folder.name}/{name}: checksum differs, the file has changed"
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
        """Bytes on disk of all files, checkpoint.json aside."""
        return sum(f.bytes for f in self.files.values())

    @property
    def has_optimizer(self) -> bool:
        """Whether the optimizer's states are still there (older checkpoints keep weights only)."""
        return f"{OPTIMIZER}/.metadata" in self.files

    @property
    def loss(self) -> float | None:
        """The loss by which checkpoints are compared: measured at its step, else by the last validation before it."""
        return self.validation_loss if self.validation_loss is not None else self.near_loss

    @property
    def standing(self) -> tuple[float, bool, float, bool, int, float]:
        """Return what sorts the best checkpoint first: by held-out answers where they were judged, then by loss, then the newest.

        One saved between two measurements counts as the one before it: were it left out because its own is not known, a
        damaged best one would be replaced by one of long ago.
        """
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
        sizes = [problem for name in self.files if (problem := self._wrong_size(name))]
        if sizes:
            return sizes
        with ThreadPoolExecutor(max_workers=4) as pool:
            found = pool.map(lambda item: differing_file(self.path, *item), self.files.items())
            return [problem for problem in found if problem]

    def _wrong_size(self, name: str) -> str | None:
        try:
            size = (self.path / name).stat().st_size
        except OSError as error:
            return f"{self.path.name}/{name}: {error.strerror or error}"
        wanted = self.files[name].bytes
        return None if size == wanted else f"{self.path.name}/{name}: {size:,} bytes, {wanted:,} were written"

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


class CheckpointStore:
    """The folder of a run's checkpoints.

    Reading changes nothing, so evaluators and servers may open it while training writes.

    Args:
        folder: `checkpoints/` of a run; it need not exist.
        on_problem: told once about each damaged checkpoint that was passed over.
    """

    def __init__(self, folder: Path | str, on_problem: Callable[[str], None] | None = None) -> None:
        self.folder = Path(folder)
        self._on_problem = on_problem
        self._verified: dict[Path, tuple[tuple[int, ...], list[str]]] = {}
        self._told: set[str] = set()
        self.problems: list[str] = []

    def all(self) -> list[Checkpoint]:
        """Return checkpoints whose checkpoint.json is sound, oldest first; the latest save of each step."""
        latest = {checkpoint.step: checkpoint for checkpoint in self.every()}
        return [latest[step] for step in sorted(latest)]

    def every(self) -> list[Checkpoint]:
        """Return sound checkpoints including earlier saves of the same step, oldest first."""
        found = []
        for number, path in self._folders():
            try:
                found.append((number, read_checkpoint(path)))
            except DamagedCheckpoint as error:
                self._tell(error.message)
        return [c for _, c in sorted(found, key=lambda item: (item[1].step, item[0]))]

    def newest_good(self, before: int | None = None, *, with_optimizer: bool = False) -> Checkpoint | None:
        """Return the newest checkpoint that verifies, of a step < `before`; None if there is none."""
        for checkpoint in reversed(self.every()):
            if before is not None and checkpoint.step >= before:
                continue
            if (checkpoint.has_optimizer or not with_optimizer) and self.is_good(checkpoint):
                return checkpoint
        return None

    def best(self) -> Checkpoint | None:
        """Return the good checkpoint with the most right answers or the lowest loss; the newest if none was ever measured."""
        return next((c for c in self.best_first() if self.is_good(c)), None)

    def best_first(self) -> list[Checkpoint]:
        """Return all checkpoints in the order of `Checkpoint.standing`."""
        return sorted(self.every(), key=lambda c: c.standing)

    def at(self, step: int) -> Checkpoint:
        """Return the verified checkpoint of a step. Raises UserError naming those there are."""
        for checkpoint in reversed(self.every()):
            if checkpoint.step == step and self.is_good(checkpoint):
                return checkpoint
        there = ", ".join(str(c.step) for c in self.all()) or "none"
        damaged = "".join(f"; {problem}" for problem in self.problems if f"step-{step:08d}" in problem)
        raise UserError(f"{self.folder}: no good checkpoint of step {step}{damaged}", f"steps that were kept: {there}")

    def is_good(self, checkpoint: Checkpoint) -> bool:
        """Return whether every file is what was written. Read once; again only when a file's size or time changed."""
        stamp = _stamp(checkpoint)
        known = self._verified.get(checkpoint.path)
        if known is None or known[0] != stamp:
            known = (stamp, checkpoint.verify())
            self._verified[checkpoint.path] = known
        for problem in known[1]:
            self._tell(f"damaged checkpoint passed over: {problem}")
        return not known[1]

    def trust(self, checkpoint: Checkpoint) -> None:
        """Remember that a checkpoint verifies: its writers have just read it back."""
        self._verified[checkpoint.path] = (_stamp(checkpoint), [])

    def free_name(self, step: int) -> Path:
        """Return the folder that the next save of a step gets."""
        numbers = [number for number, path in self._folders() if _step_of(path) == step]
        name = f"step-{step:08d}"
        return self.folder / (name if not numbers else f"{name}.{max(numbers) + 1}")

    def free_bytes(self) -> int:
        """Return the bytes free to this user on the disk that holds the checkpoints."""
        place = next(path for path in (self.folder, *self.folder.absolute().parents) if path.exists())
        return shutil.disk_usage(place).free

    def clean_stale(self) -> list[str]:
        """Remove what dead writers left half done. Only for the process that holds the run's lock."""
        removed = []
        for path in self.folder.glob("step-*"):
            if _TEMPORARY.fullmatch(path.name) and path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
                removed.append(path.name)
        return removed

    def _folders(self) -> list[tuple[int, Path]]:
        try:
            # A file of that name too: what lies in a checkpoint's place is a damaged one, and is told.
            names = [(m, p) for p in self.folder.iterdir() if (m := _FOLDER.fullmatch(p.name))]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"checkpoint folder {self.folder} cannot be read: {error.strerror or error}") from None
        return sorted((int(m[2] or 1), p) for m, p in names)

    def _tell(self, problem: str) -> None:
        if problem not in self._told:
            self._told.add(problem)
            self.problems.append(problem)
            if self._on_problem:
                self._on_problem(problem)


@dataclass(frozen=True)
class Chosen:
    """A run, the checkpoint of it to use, and what its user should know: which better ones were damaged."""

    run: RunFolder
    checkpoint: Checkpoint
    warnings: tuple[str, ...] = ()


def choose_checkpoint(run: Path, which: Which, purpose: str = "") -> Chosen:
    """Return a run's checkpoint that is best by held-out answers or validation loss, the newest good one, or that of a step.

    Args:
        run: the run's folder.
        which: 'best', 'newest' or a step.
        purpose: what it is for, as in "to serve", for the error's words.

    Raises:
        UserError: no run folder, none of that step, or a file beside it (the tokenizer) has changed.
        NoGoodCheckpoint: there is none, or all are damaged.
    """
    folder = RunFolder.open(run)
    store = CheckpointStore(folder.checkpoints_dir)
    if isinstance(which, int):
        chosen: Checkpoint | None = store.at(which)
    else:
        chosen = store.best() if which == "best" else store.newest_good()
    if chosen is None:
        found = "; ".join(store.problems[:2]) or "it has saved none"
        raise NoGoodCheckpoint(
            f"{run} has no {f'good checkpoint {purpose}'.rstrip()}: {found}",
            f"go on with: windtunnel train --run {run} --resume",
        )
    for name, written in chosen.beside.items():
        problem = differing_file(folder.path, name, written)
        if problem:
            raise UserError(
                f"{problem} since checkpoint {chosen.path.name} was saved",
                f"bring back {folder.path / name}; `windtunnel train --resume --run {run}` writes it again",
            )
    return Chosen(folder, chosen, _warnings(store, chosen, which))


def _warnings(store: CheckpointStore, chosen: Checkpoint, which: Which) -> tuple[str, ...]:
    """Say which checkpoints that would have been preferred are damaged, and what is used instead."""
    if not store.problems or isinstance(which, int):
        return ()
    step, _, measured = str(chosen).partition(", ")
    used = f"{step} ({measured})" if measured else step
    return tuple(f"{problem}; {used} is used instead" for problem in store.problems)


def read_checkpoint(path: Path) -> Checkpoint:
    """Parse a folder's checkpoint.json.

    Raises:
        DamagedCheckpoint: it is missing, changed or malformed.
        UserError: another version of windtunnel wrote it.
    """
    try:
        data = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if data["checksum"] != _manifest_checksum(data):
            raise ValueError("checksum differs, the file has changed")
        if data["format"] == FORMAT:
            return Checkpoint(
                path, data["step"], data["world"], data["created"], data["state"], _written(data["files"]),
                data["validation_loss"], data["near_loss"], data["config"], _written(data["beside"]),
                data.get("score"), data.get("near_score"),
            )  # fmt: skip
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
    return loss if loss is not None and math.isfinite(loss) else None


def _manifest_checksum(data: dict[str, Any]) -> str:
    # Of the content in one fixed form, not of the file: indentation and the order of keys are nobody's damage.
    rest = {key: value for key, value in data.items() if key != "checksum"}
    return str(xxhash.xxh3_128_hexdigest(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()))


def _step_of(path: Path) -> int:
    match = _FOLDER.fullmatch(path.name)
    assert match
    return int(match[1])


def _stamp(checkpoint: Checkpoint) -> tuple[int, ...]:
    """Return numbers that change whenever a file of the checkpoint is replaced or rewritten."""
    stamp: list[int] = []
    for name in sorted(checkpoint.files):
        try:
            found = (checkpoint.path / name).stat()
            stamp += [found.st_ino, found.st_size, found.st_mtime_ns]
        except OSError:
            stamp.append(-1)
    return tuple(stamp)
