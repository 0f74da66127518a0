"""Versions that an engine must refuse: cut off while they were written, damaged later, of another number."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .types import CheckFailed

if TYPE_CHECKING:
    from torch import Tensor

    from windtunnel.rl import EngineProcess, Publication, Publisher

SHARD_BYTES = 1 << 16
"""Of a scale model's files, so that it has several."""


def watched_publisher(folder: Path, copy: Path) -> Publisher:
    """A publisher that, while it writes, leaves in `copy` what is on the disk then: what a kill at that moment would leave."""
    from windtunnel.rl import Publisher

    class Watched(Publisher):
        def publish(
            self, version: int, weights: Iterable[tuple[str, Tensor]], config: dict[str, Any], canary: Any
        ) -> Publication:
            return super().publish(version, _then(weights, partial(_photograph, folder, copy)), config, canary)

    return Watched(folder, shard_bytes=SHARD_BYTES)


def half_written_is_passed_over(engine: EngineProcess, copy: Path, complete: int) -> None:
    """In the copy of a folder in which a version was being written, the one before is the newest."""
    from windtunnel.rl import BrokenPublication, newest_publication, open_publication

    path = newest_publication(copy)
    found = None
    if path is not None:
        try:
            found = open_publication(path).version
        except BrokenPublication as error:
            raise CheckFailed(f"a half-written version stands among the complete ones: {error}") from None
    if found != complete:
        raise CheckFailed(f"of a half-written version and complete version {complete}, version {found} is taken for the newest")
    for torn in (path for path in copy.iterdir() if ".tmp-" in path.name):
        _refused(f"a half-written version ({torn.name})", partial(engine.load, torn, complete + 1))


def damaged_are_refused(engine: EngineProcess, whole: Path, folder: Path, version: int) -> None:
    """A file cut short, a file with another byte, a file that is gone."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, damage in (("cut", _cut), ("changed", _change), ("gone", Path.unlink)):
        copy = folder / name / whole.name
        shutil.copytree(whole, copy)
        damage(max(copy.glob("*.safetensors"), key=lambda file: file.stat().st_size))
        _refused(f"a version with a file {name}", partial(engine.load, copy, version))


def stale_is_noticed(engine: EngineProcess, old: Path, answered: int, wanted: int) -> None:
    """An old version in the place of the new one, and answers by old weights."""
    from windtunnel.rl import require_fresh

    _refused("an old version in the place of the new one", partial(engine.load, old, wanted))
    _refused("answers by an old version", partial(require_fresh, answered, wanted))


def _refused(what: str, action: Callable[[], Any]) -> None:
    from windtunnel.rl import BrokenPublication, StaleWeights

    try:
        action()
    except (BrokenPublication, StaleWeights):
        return
    raise CheckFailed(f"{what} is taken for good")


def _then(weights: Iterable[tuple[str, Tensor]], action: Callable[[], None]) -> Iterator[tuple[str, Tensor]]:
    yield from weights
    action()  # all but the last file are written


def _photograph(folder: Path, copy: Path) -> None:
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)


def _cut(file: Path) -> None:
    with open(file, "r+b") as opened:
        opened.truncate(file.stat().st_size - 1)


def _change(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-2] ^= 0x40
    file.write_bytes(bytes(content))
