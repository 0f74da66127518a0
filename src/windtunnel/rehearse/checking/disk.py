"""The folders that a run writes to: they exist or can be made, hold enough, and keep what a checkpoint relies on."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import uuid
from pathlib import Path

from windtunnel.recipe import UserError

from .context import Context
from .types import Check, Evidence, Findings, Say

GIB = 2**30
LEAST_GIB = 1.0
LEAST_INODES = 10_000
_GONE_AFTER_REBOOT = ("tmpfs", "ramfs")
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "9p", "lustre", "beegfs")


def _disk(context: Context, say: Say) -> Evidence:
    found = Findings()
    runs, cache, temporary = nearest(context.root), nearest(_cache()), Path(tempfile.gettempdir())
    for name, folder in (("runs", runs), ("cache", cache), ("temporary files", temporary)):
        say(f"writing to {folder}")
        problem = _write_and_rename(folder)
        if problem:
            found.problem(f"{folder} ({name}): {problem}", _remedy(name))
            continue
        _room(found, name, folder)
    if os.environ.get("TMPDIR") and not Path(os.environ["TMPDIR"]).is_dir():
        found.problem(f"TMPDIR is {os.environ['TMPDIR']!r}, which is no folder", "unset TMPDIR, or make that folder")
    for variable in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "HF_HOME"):
        value = os.environ.get(variable)
        if value and not os.access(nearest(Path(value)), os.W_OK | os.X_OK):
            found.problem(f"{variable} is {value}, where nothing can be written", f"unset {variable}, or name another folder")
    free = shutil.disk_usage(runs).free / GIB
    _planned(context, found, free, runs)
    kind = file_system(runs)
    if kind in _GONE_AFTER_REBOOT:
        found.warn(f"{runs} is {kind}: runs would take memory and be gone after a reboot; give another --root")
    elif kind in _NETWORK:
        found.warn(f"{runs} is on {kind}: mind that checkpoints may be slow there; the rehearsal's check 'saving' measures it")
    text = f"{free:,.1f} GiB free at {runs.resolve()}" + (f" ({kind})" if kind else "") + "; files and renames are kept"
    return found.evidence(text, {"free_gib": free, "file_system": kind})


def nearest(folder: Path) -> Path:
    """The folder, or the nearest of its parents that exists."""
    path = folder.expanduser().absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def file_system(folder: Path) -> str:
    """Type of the file system that holds a folder, as /proc/mounts names it; empty where that cannot be told."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text("utf-8").splitlines()]
    except OSError:
        return ""
    path = str(folder.resolve())
    inside = [(m[1], m[2]) for m in mounts if len(m) > 2 and (path == m[1] or path.startswith(m[1].rstrip("/") + "/"))]
    return max(inside, key=lambda mount: len(mount[0]), default=("", ""))[1]


def _cache() -> Path:
    own, shared = os.environ.get("WINDTUNNEL_CACHE"), os.environ.get("XDG_CACHE_HOME")
    return Path(own or (Path(shared) / "windtunnel" if shared else "~/.cache/windtunnel"))


def _remedy(name: str) -> str:
    variable = {"runs": "give another --root", "cache": "set WINDTUNNEL_CACHE to a folder that can be written"}
    return variable.get(name, "set TMPDIR to a folder that can be written")


def _write_and_rename(folder: Path) -> str | None:
    """What a checkpoint does: files in a folder of a temporary name, synchronised, locked, renamed. What went wrong, or None."""
    if not folder.is_dir():
        return "is not a folder"
    made = folder / f".windtunnel-{uuid.uuid4().hex[:8]}"
    final = made.with_name(f"{made.name}-renamed")
    try:
        made.mkdir()
        with open(made / "probe", "wb") as file:
            file.write(os.urandom(4096))
            file.flush()
            os.fsync(file.fileno())
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        made.rename(final)
        if (final / "probe").stat().st_size != 4096:
            return "what was written does not come back"
    except OSError as error:
        reason = {errno.ENOLCK: "no file locks", errno.ENOTSUP: "no file locks", errno.EDQUOT: "your quota is used up"}
        return f"nothing can be written: {reason.get(error.errno or 0, error.strerror)}"
    finally:
        for path in (made, final):
            shutil.rmtree(path, ignore_errors=True)
    return None


def _room(found: Findings, name: str, folder: Path) -> None:
    free = shutil.disk_usage(folder).free / GIB
    if free < LEAST_GIB:
        what = f"{free:.2f} GiB free at {folder} ({name}), at least {LEAST_GIB:.0f} is needed"
        found.problem(what, _remedy(name), shows="first checkpoint")
    inodes = os.statvfs(folder)
    if inodes.f_files and inodes.f_favail < LEAST_INODES:
        found.problem(
            f"{inodes.f_favail:,} more files may be made at {folder} ({name})", "remove files there", shows="first checkpoint"
        )


def _planned(context: Context, found: Findings, free: float, runs: Path) -> None:
    """Where this machine is itself a rig that was asked for, what the plan writes must fit."""
    try:
        rigs = [rig for rig in context.rigs if rig.name in ("here", "cpu")]
        plans = [context.plan(rig) for rig in rigs]
    except UserError:
        return  # the checks of recipe, rig and plan say so
    for plan in plans:
        if plan.fits and plan.disk_gib > free:
            what = f"the run on {plan.rig} keeps {plan.disk_gib:,.1f} GiB; {free:,.1f} are free at {runs}"
            found.problem(what, "free some space, or --set checkpoints.keep_hourly=false", shows="first checkpoint")


CHECKS = (
    Check(
        "disk",
        "runs, cache and temporary files can be written, are kept, and have room",
        "free some space, or name other folders: --root, WINDTUNNEL_CACHE, TMPDIR",
        _disk,
        limit=30.0,
    ),
)
