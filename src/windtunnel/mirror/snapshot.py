"""What a mirror holds: files cut into blocks that are stored once by their content, and lists of which blocks make which file.

blocks/<xxh3_128 of the bytes>      up to 64 MiB of a file, never changed
snapshots/00000001-00000042.json    one state of the run: every file, its size, checksum and blocks; by lease and number
lease/                              who trains it; see `lease`
report.html, recipe.yaml            copies for people, never read back

A snapshot is written after all of its blocks, so one that can be read is whole. Files that grow are sent by what is new of
them, an upload that was cut short goes on with the blocks that are missing, and a file that did not change costs nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from windtunnel.recipe import UserError

from .store import Store

FORMAT = 1
BLOCKS, SNAPSHOTS = "blocks", "snapshots"
BLOCK_BYTES = 64 << 20
STATE_BLOCK_BYTES = 4 << 20
"""Of files that change: only the blocks that did are sent again."""


@dataclass(frozen=True)
class Block:
    """A piece of a file: its name is the hex xxh3_128 of its bytes."""

    name: str
    size: int

    @classmethod
    def of(cls, data: bytes) -> Block:
        """Return the block that has these bytes."""
        return cls(xxhash.xxh3_128_hexdigest(data), len(data))

    @property
    def key(self) -> str:
        """Return its object."""
        return f"{BLOCKS}/{self.name}"


@dataclass(frozen=True)
class Kept:
    """A file of the run as it is kept: size, hex xxh3_128 of all of it, and its blocks in order."""

    size: int
    checksum: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Snapshot:
    """One state of a run.

    Attributes:
        run: its folder's name. session: the token of the lease under which it was written. created: seconds since the epoch.
        step: of the newest checkpoint that can be gone on from; 0 without one.
        files: by path within the run's folder.
    """

    run: str
    session: str
    step: int
    files: dict[str, Kept]
    created: float = field(default_factory=time.time)

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks of all files; those that several share more than once."""
        for kept in self.files.values():
            yield from kept.blocks

    def dump(self) -> bytes:
        """Return it as JSON with a checksum of its own."""
        files = {
            path: [kept.size, kept.checksum, [[b.name, b.size] for b in kept.blocks]] for path, kept in sorted(self.files.items())
        }
        told = {
            "format": FORMAT, "run": self.run, "session": self.session, "step": self.step, "created": self.created,
            "files": files,
        }  # fmt: skip
        # Of its own: a store may keep half of an object, and half a list of files would restore half a run.
        return json.dumps(told | {"checksum": _checksum(told)}).encode()

    @classmethod
    def parse(cls, data: bytes) -> Snapshot:
        """Read what `dump` wrote. Raises ValueError where it is damaged, UserError where a newer version wrote it."""
        try:
            told: dict[str, Any] = json.loads(data)
            if told.pop("checksum") != _checksum(told):
                raise ValueError("checksum differs")
            # After the checksum: what is damaged is passed over, what a newer version wrote must not be.
            if told["format"] > FORMAT:
                raise UserError(f"a mirror of format {told['format']}; this version reads {FORMAT}", "upgrade windtunnel")
            files = {
                path: Kept(size, checksum, tuple(Block(*block) for block in blocks))
                for path, (size, checksum, blocks) in told["files"].items()
            }
            return cls(told["run"], told["session"], told["step"], files, told["created"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"malformed: {error}") from None


def snapshot_key(lease: int, number: int) -> str:
    """Return the object of a snapshot: later ones sort after earlier ones, whatever any clock says."""
    return f"{SNAPSHOTS}/{lease:08d}-{number:08d}.json"


def snapshot_keys(store: Store) -> list[str]:
    """Return the objects of all snapshots, oldest first. Raises StoreError."""
    return sorted(key for key in store.sizes(SNAPSHOTS) if key.endswith(".json"))


def mirrored_runs(store: Store) -> list[str]:
    """Return the names of the runs below a store's place; '' is a run that is mirrored to the place itself. Raises StoreError."""
    found = (key.rpartition(f"{SNAPSHOTS}/") for key in store.sizes(""))
    return sorted({run.rstrip("/") for run, folder, name in found if folder and name.endswith(".json")})


def newest_snapshot(store: Store) -> tuple[str, Snapshot] | None:
    """Return the newest snapshot that reads well, with its key; None where there is none. Raises StoreError."""
    for key in reversed(snapshot_keys(store)):
        try:
            return key, Snapshot.parse(store.get(key) or b"")
        except ValueError:
            continue  # damaged: the one before it is whole
    return None


def cut(data: bytes, size: int) -> Iterator[bytes]:
    """Yield bytes in pieces of a size; the last may be shorter."""
    for start in range(0, len(data), size):
        yield data[start : start + size]


def remove_unused(store: Store, snapshots: Iterable[Snapshot], there: Iterable[str]) -> list[str]:
    """Delete blocks that none of the snapshots needs; returns the names of those that went.

    Args:
        store: of the mirror.
        snapshots: that stay.
        there: names of blocks that may go.
    """
    needed = {block.name for snapshot in snapshots for block in snapshot.blocks()}
    doomed = sorted(set(there) - needed)
    for name in doomed:
        store.delete(f"{BLOCKS}/{name}")
    return doomed


def local_path(folder: Path, name: str) -> Path:
    """Return the place of a snapshot's file within a folder. Raises UserError for one that would lie outside."""
    path = folder / name
    # A snapshot is data that somebody may have written; it must not reach outside of the run.
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise UserError(f"the mirror names a file outside of the run: {name!r}", "it was not written by windtunnel")
    return path


def _checksum(told: dict[str, Any]) -> str:
    rest = {key: value for key, value in told.items() if key != "checksum"}
    return str(xxhash.xxh3_128_hexdigest(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()))
