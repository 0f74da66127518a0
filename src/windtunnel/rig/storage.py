"""Where runs and caches live: what outlasts a rented machine, and what is fast.

A pod's own layer goes with the pod, memory with a reboot; network volumes stay and are slow. Runs must stay, caches must be
fast and can be made again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

GONE_AFTER_REBOOT = ("tmpfs", "ramfs")
GONE_WITH_CONTAINER = ("overlay", "aufs", "fuse-overlayfs", "fuse.fuse-overlayfs")
NETWORK = (
    "nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.juicefs", "9p", "lustre", "beegfs", "ceph",
    "virtiofs", "gpfs", "wekafs",
)  # fmt: skip
LOCAL = ("ext4", "ext3", "xfs", "btrfs", "zfs", "f2fs")
SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/run", "/boot", "/usr", "/var/lib", "/snap")


@dataclass(frozen=True)
class Mount:
    """A file system: where it hangs, its type, and whether it may be written to."""

    folder: str
    kind: str
    writable: bool = True

    def holds(self, path: str) -> bool:
        """Whether a path lies in it."""
        return path == self.folder or path.startswith(self.folder.rstrip("/") + "/")


def cache_folder() -> Path:
    """Return where what can be made again is kept: $WINDTUNNEL_CACHE, else `windtunnel` in the cache of the user's account."""
    own, shared = os.environ.get("WINDTUNNEL_CACHE"), os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(own or Path(shared) / "windtunnel").expanduser()


def nearest(folder: Path) -> Path:
    """Return the folder, or the nearest of its parents that exists."""
    path = folder.expanduser().absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def mounts(table: Path = Path("/proc/mounts")) -> list[Mount]:
    """Return what is mounted; nothing where that cannot be told."""
    try:
        lines = [line.split() for line in table.read_text("utf-8").splitlines()]
    except OSError:
        return []
    return [Mount(m[1], m[2], "ro" not in m[3].split(",")) for m in lines if len(m) > 3]


def file_system(folder: Path, table: list[Mount] | None = None) -> str:
    """Type of the file system that holds a folder; empty where that cannot be told."""
    path = str(folder.resolve())
    inside = [mount for mount in (mounts() if table is None else table) if mount.holds(path)]
    # The deepest: mounts hang within each other.
    return max(inside, key=lambda mount: len(mount.folder), default=Mount("", "")).kind


def volumes(table: list[Mount]) -> list[str]:
    """Return folders of mounted disks that outlast a container, those of this machine before those of the network."""
    found = [m for m in table if m.writable and m.folder != "/" and not any(Mount(s, "").holds(m.folder) for s in SYSTEM)]
    # Disks of this machine first, which are faster.
    kept = [m for kinds in (LOCAL, NETWORK) for m in found if m.kind in kinds and Path(m.folder).is_dir()]
    return list(dict.fromkeys(m.folder for m in kept if os.access(m.folder, os.W_OK)))


def advise(runs: Path, cache: Path, table: list[Mount]) -> list[str]:
    """Return warnings: runs that would not outlast the machine or are saved slowly, caches that are read over a network."""
    said = []
    kind = file_system(runs, table)
    if kind in GONE_AFTER_REBOOT:
        said.append(f"{runs} is {kind}: runs would take memory and be gone after a reboot; give another --root")
    elif kind in GONE_WITH_CONTAINER:
        there = volumes(table)
        where = f"keep runs on a volume: --root {there[0].rstrip('/')}/runs" if there else (
            "no volume is mounted here: rent the pod with one, or mirror checkpoints to an object store (docs/mirror.md)"
        )  # fmt: skip
        said.append(f"{runs} is in this container's own layer ({kind}), which is gone when the pod is; {where}")
    elif kind in NETWORK:
        said.append(f"{runs} is on {kind}: mind that checkpoints may be slow there; the rehearsal's check 'saving' measures it")
    if file_system(cache, table) in NETWORK:
        kind = file_system(cache, table)
        said.append(
            f"{cache} (cache) is on {kind}: tokens and compiled code are read from there all the time and can be made again;"
            " set WINDTUNNEL_CACHE to a disk of this machine"
        )
    return said
