"""The isolation that a warm worker enters once, before any candidate: another user, namespaces, a file system of its own."""

from __future__ import annotations

import contextlib
import os
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .paths import DEVICES, is_system_link, readable_paths
from .syscalls import (
    AT_EMPTY_PATH,
    AT_FDCWD,
    AT_RECURSIVE,
    ATTR_NODEV,
    ATTR_NOSUID,
    ATTR_RDONLY,
    MNT_DETACH,
    MS_NODEV,
    MS_NOSUID,
    NEWIPC,
    NEWNET,
    NEWNS,
    NEWPID,
    NEWUSER,
    NEWUTS,
    SET_DUMPABLE,
    libc,
    move_tree,
    open_tree,
    prctl,
    private_mounts,
    syscall,
    unshare,
)

NOBODY = 65534
NOT_ROOT = "not started as root"
PROC_FD = 9  # the worker keeps /proc open here: its own root has none
NAMESPACES = ("user namespace", "mount namespace", "network namespace", "IPC namespace", "process namespace")
STAGE = "/tmp"  # covered, in a mount namespace of our own, by the root to be


@dataclass
class Outer:
    """What the worker entered: layer → '' when active, else why not."""

    layers: dict[str, str] = field(default_factory=dict)

    def attempt(self, layer: str, step: Callable[[], object]) -> bool:
        """Take a step; a refusal by the kernel is noted, not raised."""
        try:
            step()
        except OSError as error:
            self.layers[layer] = str(error)
            return False
        self.layers[layer] = ""
        return True

    def active(self, layer: str) -> bool:
        """Return whether a layer stands."""
        return self.layers.get(layer) == ""


def enter(scratch: str, devices: tuple[str, ...], *, namespaces: bool = True) -> Outer:
    """Isolate this process, which must have one thread, as far as the kernel allows.

    The caller then forks: a process namespace begins with a child.

    Args:
        scratch: a folder of the judge's for temporary files where the kernel gives no private ones.
        devices: files in /dev that the process may use.
        namespaces: False does as if the kernel gave none, as in most containers.
    """
    # Each step may be refused by the kernel or a security module; what stands in the end is told, and judged by `Layers`.
    outer = Outer()
    readable = readable_paths(devices)
    root = os.geteuid() == 0
    if not namespaces:
        outer.attempt("another user", lambda: _become_nobody(scratch))
        outer.layers |= dict.fromkeys(NAMESPACES, "switched off")
        return outer
    if root:
        # As root the tree is built first: the packages may lie where the user to be cannot go.
        outer.attempt("mount namespace", lambda: _new_root(readable, devices))
        outer.attempt("another user", lambda: _nobodys_namespace(scratch))
    if outer.active("another user"):
        outer.layers["user namespace"] = ""
    else:
        outer.attempt("user namespace", _user_namespace)
    if not root:
        outer.layers["another user"] = NOT_ROOT
        outer.attempt("mount namespace", lambda: _new_root(readable, devices))
    elif outer.active("user namespace"):
        # One that belongs to this user namespace, so that children can mount theirs.
        outer.attempt("mounts of its own", lambda: unshare(NEWNS))
    outer.attempt("network namespace", lambda: unshare(NEWNET))
    outer.attempt("IPC namespace", lambda: unshare(NEWIPC | NEWUTS))
    outer.attempt("process namespace", lambda: unshare(NEWPID))
    return outer


def _user_namespace() -> None:
    """Enter a user namespace in which this user is root; outside it stays who it is."""
    user, group = os.geteuid(), os.getegid()
    unshare(NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        _write_map("self", name, text)


def _nobodys_namespace(scratch: str) -> None:
    """Enter, as root, a user namespace in which this process is root and outside of which it is nobody.

    The maps are written by a helper that stays outside. Entering before changing the user matters where a security module
    gives ordinary users empty user namespaces.
    """
    _check_nobody(scratch)
    # The number by which /proc knows this process, for the helper that stays outside.
    me = os.readlink("self", dir_fd=PROC_FD)
    wait, go = os.pipe()
    helper = os.fork()
    if helper == 0:
        code = 1
        try:
            os.close(go)
            if os.read(wait, 1):
                for name in ("uid_map", "gid_map"):
                    _write_map(me, name, f"0 {NOBODY} 1")
                code = 0
        finally:
            os._exit(code)
    try:
        unshare(NEWUSER)
        os.write(go, b"1")
    finally:
        os.close(go)
        os.close(wait)
        _, status = os.waitpid(helper, 0)
    if status:
        raise PermissionError("the user namespace could not be mapped to another user")
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    prctl(SET_DUMPABLE, 1)


def _write_map(process: str, name: str, text: str) -> None:
    fd = os.open(f"{process}/{name}", os.O_WRONLY, dir_fd=PROC_FD)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _become_nobody(scratch: str) -> None:
    _check_nobody(scratch)
    _switch()


def _check_nobody(scratch: str) -> None:
    if os.geteuid() != 0:
        raise PermissionError(NOT_ROOT)
    if not _nobody_can_read():
        raise PermissionError("this Python is not readable for other users")
    with contextlib.suppress(FileNotFoundError):  # with a root of our own it is not there, nor needed
        os.chown(scratch, NOBODY, NOBODY)


def _switch() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    prctl(SET_DUMPABLE, 1)  # else /proc/self belongs to root


def _nobody_can_read() -> bool:
    """Return whether nobody (the user) can read what a candidate needs. Tried in a child: becoming nobody cannot be undone."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _switch()
            for path in (os.__file__, __file__):
                os.close(os.open(path, os.O_RDONLY))
            code = 0 if all(os.access(path, os.R_OK) for path in sys.path if os.path.exists(path)) else 1
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def _new_root(readable: tuple[str, ...], devices: tuple[str, ...]) -> None:
    """Make a root of our own: the readable paths at their places, read-only, and /tmp with only those of them that lie there."""
    private_mounts()
    links = {path: os.readlink(path) for path in readable if is_system_link(path)}
    # Before the stage covers what may lie below it.
    here = [path for path in readable if path not in links and not path.startswith("/proc")] + (["/proc"] if devices else [])
    trees = {path: (_clone(path, devices), os.path.isdir(path)) for path in here}
    libc("mount", b"windtunnel", STAGE.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, b"size=1m,mode=755")
    for path, (tree, is_folder) in trees.items():
        target = Path(STAGE + path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.mkdir(exist_ok=True) if is_folder else target.touch()
        move_tree(tree, str(target))
    for path, goal in links.items():
        os.symlink(goal, STAGE + path)
    os.makedirs(STAGE + "/tmp", exist_ok=True)
    os.chdir(STAGE)
    syscall("pivot_root", b".", b".")
    libc("umount2", b".", MNT_DETACH)
    os.chdir("/")
    _set(AT_FDCWD, b"/", 0, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV)


def _clone(path: str, devices: tuple[str, ...]) -> int:
    tree = open_tree(path)
    # /proc too: children may mount their own only while this one is whole and writable as far as mounts go.
    device = path in (*DEVICES, *devices, "/proc")
    with contextlib.suppress(OSError) if device else contextlib.nullcontext():
        _set(tree, b"", AT_EMPTY_PATH | AT_RECURSIVE, ATTR_NOSUID | (0 if device else ATTR_RDONLY | ATTR_NODEV))
    return tree


def _set(fd: int, path: bytes, flags: int, attributes: int) -> None:
    """Call mount_setattr with struct mount_attr: attributes to set, none to clear, propagation as it is."""
    import ctypes

    packed = struct.pack("<QQQQ", attributes, 0, 0, 0)
    syscall("mount_setattr", fd, path, flags, ctypes.create_string_buffer(packed, len(packed)), len(packed))
