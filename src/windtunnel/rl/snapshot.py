"""Published weights on disk: a Hugging Face model folder per version, with a manifest that says what must be in it.

    version-00000007/
        snapshot.json               version, every tensor's dtype and shape, size and checksum of every file, the canary
        config.json
        model.safetensors           or several with their index, as transformers and vLLM read them

A folder gets its name by one rename when all of it is on the disk, so one that has it was never half-written.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from windtunnel.checkpoint import Written, checksum, to_disk, write_shards
from windtunnel.files import fsync_folder

from .canary import Canary
from .errors import BrokenSnapshot

FORMAT = 1
MANIFEST, CONFIG = "snapshot.json", "config.json"
SHARD_BYTES = 2 << 30
_FOLDER = re.compile(r"version-(\d{8,})")


@dataclass(frozen=True)
class Entry:
    """One tensor: its dtype as torch calls it, its shape and its file's name."""

    dtype: str
    shape: tuple[int, ...]
    file: str


@dataclass(frozen=True)
class WeightSnapshot:
    """One version of the weights.

    Attributes:
        version: the learner's count of updates that they have behind them.
        tensors: by their name in the files. files: what each must look like.
        canary: None where nothing was scored.
    """

    path: Path
    version: int
    tensors: dict[str, Entry]
    files: dict[str, Written]
    canary: Canary | None

    def problem(self) -> str | None:
        """Return what is wrong with the files (missing, another size, other content), or None. Reads everything."""
        for name, expected in self.files.items():
            try:
                found = checksum(self.path / name)
            except OSError as error:
                return f"{self.path.name}/{name}: {error.strerror or error}"
            if found.bytes != expected.bytes:
                return f"{self.path.name}/{name}: {found.bytes:,} bytes, {expected.bytes:,} were published"
            if found != expected:
                return f"{self.path.name}/{name}: its content is not what was published"
        return None


class Publisher:
    """Writes versions into a folder of its own and removes old ones. One process only.

    Args:
        folder: made where it is not there.
        empty: of what an earlier process left; else only what it left half-written goes.
        keep: versions that stay; an engine may still be reading the one before the newest.
        shard_bytes: of a file at most, unless one tensor is larger; so much is held on the host before it is written.
    """

    def __init__(self, folder: Path, keep: int = 2, shard_bytes: int = SHARD_BYTES, *, empty: bool = True) -> None:
        self.folder, self._keep, self._shard_bytes, self._last = folder, max(1, keep), shard_bytes, -1
        folder.mkdir(parents=True, exist_ok=True)
        self.forget(None if empty else 1 << 62)

    def forget(self, after: int | None = None) -> None:
        """Remove versions above `after`, or all; the next one may have any number."""
        self._last = -1
        for path in self.folder.iterdir():
            match = _FOLDER.fullmatch(path.name)
            if path.name.startswith("version-") and (match is None or after is None or int(match[1]) > after):
                shutil.rmtree(path)

    def keep_only(self, versions: Collection[int]) -> None:
        """Remove all versions but these; nothing is published any more."""
        wanted = {version_folder(self.folder, version) for version in versions}
        for path in published(self.folder):
            if path not in wanted:
                shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def publish(
        self, version: int, weights: Iterable[tuple[str, Tensor]], config: dict[str, Any], canary: Canary | None
    ) -> WeightSnapshot:
        """Write one version; it exists when this returns, and not at all if it raises.

        Args:
            version: updates that the weights have behind them; above the last version.
            weights: tensors on the host by their name in a Hugging Face checkpoint.
            config: of config.json.
            canary: sequences that the learner scored; None where nothing was.

        Raises:
            ValueError: the version is not above the last, a name comes twice, or there are no weights.
            OSError: the disk.
        """
        if version <= self._last:
            raise ValueError(f"version {version} after version {self._last}")
        path = version_folder(self.folder, version)
        # Named for this process: what a killed one left is told apart, and goes.
        temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
        temporary.mkdir()
        try:
            tensors = _write_weights(temporary, weights, self._shard_bytes)
            (temporary / CONFIG).write_text(json.dumps(config, indent=1), encoding="utf-8")
            # From the disk, not from memory: what is checked later is what was written.
            files = {file.name: checksum(file) for file in sorted(temporary.iterdir())}
            made = WeightSnapshot(path, version, tensors, files, canary)
            (temporary / MANIFEST).write_text(json.dumps(_as_json(made)), encoding="utf-8")
            to_disk(temporary)
            if path.exists():  # by an earlier process that did not live to use it
                shutil.rmtree(path)
            temporary.rename(path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        fsync_folder(self.folder)
        self._last = version
        # Last: an engine may still be reading the one before, and a failure here costs only disk.
        for old in published(self.folder)[: -self._keep]:
            shutil.rmtree(old, ignore_errors=True)
        return made


def version_folder(folder: Path, version: int) -> Path:
    """Return where a version is, once it is complete."""
    return folder / f"version-{version:08d}"


def published(folder: Path) -> list[Path]:
    """Return the folders of complete versions, oldest first; what is still being written is not among them."""
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _FOLDER.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def newest_snapshot(folder: Path) -> Path | None:
    """Return the newest complete version's folder."""
    found = published(folder)
    return found[-1] if found else None


def open_snapshot(path: Path) -> WeightSnapshot:
    """Read a version's manifest; `problem` looks at the files. Raises BrokenSnapshot."""
    try:
        content = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']}, this version reads {FORMAT}")
        tensors = {name: Entry(e["dtype"], tuple(e["shape"]), e["file"]) for name, e in content["tensors"].items()}
        files = {name: Written(**written) for name, written in content["files"].items()}
        # A file without a checksum would pass every check.
        unknown = {entry.file for entry in tensors.values()} - files.keys()
        if unknown:
            raise ValueError(f"no checksum of {min(unknown)}")
        canary = None if content["canary"] is None else Canary.from_json(content["canary"])
        return WeightSnapshot(path, int(content["version"]), tensors, files, canary)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BrokenSnapshot(f"{path} is not a whole snapshot: {type(error).__name__}: {error}") from None


def _as_json(made: WeightSnapshot) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": made.version,
        "tensors": {name: asdict(entry) for name, entry in made.tensors.items()},
        "files": {name: asdict(written) for name, written in made.files.items()},
        "canary": None if made.canary is None else made.canary.as_json(),
    }


def _write_weights(folder: Path, weights: Iterable[tuple[str, Tensor]], most: int) -> dict[str, Entry]:
    found: dict[str, tuple[str, tuple[int, ...]]] = {}

    def seen() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in weights:
            found[name] = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
            yield name, tensor

    files = write_shards(folder, seen(), most).files
    return {name: Entry(*found[name], files[name]) for name in found}
