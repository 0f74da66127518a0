"""Bringing a run home from its mirror, every byte checked; an interrupted one goes on where it was."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash

from windtunnel.checkpoint import checksum
from windtunnel.files import write_json
from windtunnel.recipe import UserError
from windtunnel.run import is_live

from .lease import SPENT, Holder, Keeper, Lease
from .snapshot import Block, Kept, Snapshot, local_path, mirrored_runs, newest_snapshot
from .store import Place, Store
from .sync import STATE, read_state

DOWNLOADS = 4
SAY_SECONDS = 10.0
MARGIN = 1.02
HALF = ".restoring"
LEFT = ".left"


def restore_run(url: str, root: Path, say: Callable[[str], None], *, aside: bool = False) -> Path:
    """Bring a run from its mirror to go on with it here, under its lease; returns its folder.

    A folder that is here already and is what the mirror holds, or newer, is left as it is.

    Args:
        url: of the run, such as s3://bucket/folder/charlm-20260101-000000.
        root: the folder of runs here.
        say: told how far it is.
        aside: a folder here that is another state of the run, left behind when another machine went on, is moved out of the way.

    Raises:
        UserError: no run there; another machine trains it; the folder here is another state of it; no room; damaged blocks.
    """
    store = Store(Place.parse(url))
    found = require_snapshot(store)
    folder = root / found.run
    if folder.exists() and _is_of(folder, found, say, aside=aside):
        return folder
    lease = Lease.acquire(store, say)
    keeper = Keeper(lease)
    try:
        found = require_snapshot(store)  # its last holder may have written another one meanwhile
        restored = _bring(store, found, folder, say)
        _count_lost_time(restored, lease.before())
        # By this session's name the folder is known as what the mirror was made of.
        write_json(restored / STATE, {"place": str(store.place), "sessions": [found.session]})
        _put_in_place(restored, folder)
    finally:
        keeper.close()
        lease.release()
    return folder


def fetch_run(url: str, root: Path, say: Callable[[str], None]) -> Path:
    """Bring a copy of a run home to look at, while it may still be trained elsewhere; returns its folder. Raises UserError."""
    store = Store(Place.parse(url))
    found = require_snapshot(store)
    folder = root / found.run
    if folder.exists() and is_live(folder):
        raise UserError(f"run folder {folder} is in use", "name another --root for the copy")
    restored = _bring(store, found, folder, say)
    if folder.exists():
        shutil.rmtree(folder)
    _put_in_place(restored, folder)
    return folder


def _put_in_place(restored: Path, folder: Path) -> None:
    os.rename(restored, folder)
    with contextlib.suppress(OSError):  # another run is being restored
        restored.parent.rmdir()


def bring_files(store: Store, found: Snapshot, folder: Path, say: Callable[[str], None] = lambda text: None) -> Path:
    """Bring those files of a snapshot that a folder lacks, or has otherwise; returns the folder. Nothing else may work with it.

    Raises:
        UserError: no room, or damaged blocks.
    """
    done, said, began = 0, time.monotonic(), time.monotonic()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        wanted = {local_path(folder, name): kept for name, kept in found.files.items()}
        missing = {path: kept for path, kept in wanted.items() if not _matches(path, kept)}
        total = sum(kept.size for kept in missing.values())
        _require_room(folder, total)
        say(f"mirror: bringing {found.run}, step {found.step:,}: {total / 2**20:,.1f} MiB from {store.place}")
        with ThreadPoolExecutor(max_workers=DOWNLOADS) as pool:
            for path, kept in missing.items():
                _write(path, kept, store, pool)
                done += kept.size
                if time.monotonic() - said > SAY_SECONDS:
                    said = time.monotonic()
                    say(f"mirror: {done / 2**20:,.0f} of {total / 2**20:,.0f} MiB")
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror or error}", "free space, or name another --root") from None
    say(f"mirror: {len(wanted):,} files in {time.monotonic() - began:.1f} s, every checksum right")
    return folder


def require_snapshot(store: Store) -> Snapshot:
    """Return the newest state of a run in its mirror. Raises UserError where there is none."""
    found = newest_snapshot(store)
    if found is None:
        runs = ", ".join(f"{store.place}/{name}" for name in [name for name in mirrored_runs(store) if name][:5])
        fix = f"the runs there: {runs}" if runs else "name the run's own folder: the mirror's address and the run's name"
        raise UserError(f"{store.place} holds no run", fix)
    return found[1]


def newest_run_in(url: str, recipe: str) -> str | None:
    """Return the name of a recipe's newest run below a mirror of runs, by the time in its name; None: there is none.

    Raises:
        StoreError: the store cannot be listed.
    """
    # By the time in its name, not by the store's clock, which a copied bucket has lost.
    pattern = re.compile(re.escape(recipe) + r"(?:-[^/]+?)?-(\d{8}-\d{6}(?:-\d+)?)")
    mine = {run: made[1] for run in mirrored_runs(Store(Place.parse(url))) if (made := pattern.fullmatch(run))}
    return max(mine, key=lambda run: mine[run], default=None)


def _is_of(folder: Path, found: Snapshot, say: Callable[[str], None], *, aside: bool) -> bool:
    """Return whether the folder here is the one that the mirror was made of, so that it is at least as new. Raises UserError."""
    if found.session in read_state(folder).get("sessions", ()):
        say(f"mirror: {folder} is here already, and is what the mirror was made of")
        return True
    if aside and not is_live(folder):
        # Moved, never deleted: what this machine trained and the mirror lacks is in it.
        left = folder.parent / LEFT / f"{folder.name}-{time.time_ns()}"
        left.parent.mkdir(exist_ok=True)
        os.rename(folder, left)
        say(f"mirror: {folder} was left behind when another machine went on; it is in {left} now")
        return False
    raise UserError(
        f"{folder} is here already, and is not the state that the mirror holds (step {found.step:,})",
        f"move it out of the way: mv {folder} {folder}.old",
    )


def _bring(store: Store, found: Snapshot, folder: Path, say: Callable[[str], None]) -> Path:
    """Download a snapshot beside its place; returns that folder, whose name is yet to be changed."""
    half = folder.parent / HALF / folder.name  # where nobody looks for runs
    # Left by an attempt that was interrupted: files that are right stay, whatever snapshot they came with.
    for path in [p for p in half.rglob("*") if p.is_file() and p.relative_to(half).as_posix() not in found.files]:
        path.unlink()
    return bring_files(store, found, half, say)


def _write(path: Path, kept: Kept, store: Store, pool: ThreadPoolExecutor) -> None:
    """Write a file of its blocks under a name of its own first. Raises UserError where one is missing or changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp-restore")
    digest = xxhash.xxh3_128()
    # Under another name: an attempt that is cut off leaves no file that looks whole.
    with open(temporary, "wb") as file:
        for start in range(0, len(kept.blocks), DOWNLOADS):  # no more of them in memory
            for data in pool.map(lambda block: _block(store, block), kept.blocks[start : start + DOWNLOADS]):
                digest.update(data)
                file.write(data)
    if digest.hexdigest() != kept.checksum:
        raise UserError(f"{path.name} does not match its checksum", "an older checkpoint may be whole: see windtunnel runs")
    os.replace(temporary, path)


def _block(store: Store, block: Block) -> bytes:
    data = store.get(block.key)
    if data is None or Block.of(data) != block:
        what = "is missing" if data is None else "was changed since it was written"
        raise UserError(f"{store.place}/{block.key} {what}", "the run cannot be restored whole from this mirror")
    return data


def _matches(path: Path, kept: Kept) -> bool:
    try:
        found = checksum(path) if path.stat().st_size == kept.size else None
    except OSError:
        return False
    return found is not None and found.checksum == kept.checksum


def _require_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed * MARGIN:
        raise UserError(
            f"{folder} has {free / 2**30:,.1f} GiB free; the run needs {needed / 2**30:,.1f} GiB", "free space, or another --root"
        )


def _count_lost_time(folder: Path, holder: Holder | None) -> None:
    """Count what the last machine had spent when it was last heard of: that money is gone, even if its work is."""
    path = folder / SPENT
    with contextlib.suppress(OSError, ValueError):
        told = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"seconds": 0.0, "dollars": 0.0}
        if holder is not None and holder.seconds > told["seconds"]:
            write_json(path, {"seconds": holder.seconds, "dollars": max(holder.dollars, told["dollars"])})


def main() -> int:
    """Restore, fetch or look: python -m windtunnel.mirror.restore URL ROOT restore|again|fetch|newest [RECIPE].

    Tells a JSON object a line on standard output.
    """
    url, root, how = sys.argv[1], Path(sys.argv[2]), sys.argv[3]

    def tell(**message: str | None) -> None:
        print(json.dumps(message), flush=True)

    def say(text: str) -> None:
        tell(say=text)

    try:
        if how == "newest":
            tell(run=newest_run_in(url, sys.argv[4]))
        elif how == "fetch":
            tell(folder=str(fetch_run(url, root, say)))
        else:
            tell(folder=str(restore_run(url, root, say, aside=how == "again")))
        return 0
    except UserError as error:
        tell(error=error.message, fix=error.fix)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
