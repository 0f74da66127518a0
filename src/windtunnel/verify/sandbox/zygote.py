"""The warm worker: isolates itself, then forks a fresh child for each job and watches over it.

A fork of the process that has imported what jobs need. It never runs a candidate's code and holds nothing secret: the tests'
answers, seeds and references stay with the judge.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import outer
from .cgroup import Bound
from .child import become, probe
from .inner import Room
from .lasting import Lasting
from .paths import readable_paths
from .removing import remove
from .syscalls import SET_CHILD_SUBREAPER, SET_PDEATHSIG, prctl
from .types import MOST_FILES, Limits
from .watching import fork_alone, supervise, with_folder

MOST_MESSAGE = 1 << 16
PROBE_SECONDS = 20
CONTROL_FD = 10


def work() -> None:
    """Serve until the judge closes the socket, which is at CONTROL_FD. In a process with one thread."""
    control = socket.socket(fileno=CONTROL_FD)
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    os.dup2(proc, outer.PROC_FD, inheritable=False)
    os.close(proc)
    setup = json.loads(control.recv(MOST_MESSAGE))
    bound, no_bound = _bounded(setup)
    devices, was_root = tuple(setup["devices"]), os.geteuid() == 0
    entered = outer.enter(setup["scratch"], devices, namespaces=setup["namespaces"])
    entered.layers["memory cgroup"] = no_bound
    # A process namespace begins with a child; this one stays as its stub, and ends as it does.
    if entered.active("process namespace") and (worker := os.fork()):
        control.close()
        _, status = os.waitpid(worker, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    prctl(SET_PDEATHSIG, signal.SIGKILL)
    # Without a namespace, what a candidate leaves behind becomes this process's own child, and can be found.
    prctl(SET_CHILD_SUBREAPER, 1)
    mounts = entered.active("mount namespace")
    room = Room(
        readable=("/",) if mounts else readable_paths(devices),
        scratch="/tmp" if mounts else setup["scratch"],
        devices=devices,
        mounts=mounts,
        alone=entered.active("process namespace"),
        root=was_root and not entered.active("another user"),
        # A user namespace counts its own processes: the stub, the worker and the child.
        same_user_processes=3 if entered.active("user namespace") else None,
        proc_fd=outer.PROC_FD,
    )
    serve(control, room, entered, bound, lasting=setup["lasting"])


def _bounded(setup: dict[str, Any]) -> tuple[Bound | None, str]:
    """Put this process into its memory cgroup; returns that, or why not."""
    if setup["group"] is None:
        return None, setup["no_group"]
    try:
        return Bound(Path(setup["group"])), ""
    except OSError as error:
        return None, str(error)


def serve(control: socket.socket, room: Room, entered: outer.Outer, bound: Bound | None, *, lasting: bool = False) -> None:
    """Answer jobs one at a time, each in a child of its own or all in one that lasts."""
    gc.collect()
    gc.freeze()  # what is here now is not walked in the children, so its pages stay shared
    # A collection would write to every page that children share.
    gc.disable()
    layers = _probe(room)
    entered.layers.update(layers)
    if room.mounts and layers.get("private tmpfs"):
        # A file system of its own, but nowhere to write: better without.
        control.send(json.dumps({"again": f"private tmpfs: {layers['private tmpfs']}"}).encode())
        os._exit(0)
    active = [name for name, fault in layers.items() if not fault]
    if not room.mounts:
        entered.layers["watched folder"] = ""
    control.send(json.dumps({"layers": entered.layers, "scratch": room.scratch}).encode())
    one = Lasting(room, active) if lasting else None
    while True:
        data, fds, _, _ = socket.recv_fds(control, MOST_MESSAGE, 3 + MOST_FILES)
        if not data:
            if not room.mounts:
                remove(room.scratch)
            os._exit(0)
        job = json.loads(data)
        if bound is not None:
            bound.allow(job["limits"]["memory_bytes"] + job["limits"]["result_bytes"])
        try:
            answer = _run(control, job, fds, room, active) if one is None else one.run(control, job, fds)
        finally:
            for fd in fds:
                os.close(fd)
        control.send(json.dumps(answer | {"job": job["job"]}).encode())


def _run(control: socket.socket, job: dict[str, Any], fds: list[int], room: Room, active: list[str]) -> dict[str, Any]:
    read, write = os.pipe()
    me = os.getpid()
    room = with_folder(room)
    child = fork_alone(room)
    if child == 0:
        os.close(read)
        become(job, fds, write, room, active, me)
    os.close(write)
    try:
        return supervise(child, read, control, Limits.of(job["limits"]), room, fds[1])
    finally:
        os.close(read)


def _probe(room: Room) -> dict[str, str]:
    """Try the layers in a child that then ends."""
    read, write = os.pipe()
    child = fork_alone(room)
    if child == 0:
        try:
            os.write(write, json.dumps(probe(replace(Limits(), wall_seconds=PROBE_SECONDS), room)).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answers:
        answer = answers.read()
    os.waitpid(child, 0)
    return json.loads(answer) if answer else {"resource limits": "the trial child died"}
