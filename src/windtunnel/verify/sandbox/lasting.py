"""The worker's side of a child that serves one job after another, for jobs that run no candidate's code."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from dataclasses import replace
from typing import Any

from .child import READY, become_lasting
from .inner import Room
from .types import Limits
from .watching import JUDGE_GONE, cpu_of, end, follow, fork_alone, outside, resident, said, told, with_folder

MOST_JOBS = 1000  # then a fresh one: what libraries never give back is bounded


class Lasting:
    """One child, started when it is first needed and replaced when it died, was stopped or has served long enough."""

    def __init__(self, room: Room, layers: list[str]) -> None:
        self.room, self.layers = room, layers
        self.child = 0
        self.jobs = 0
        self.limits = Limits()

    def run(self, control: socket.socket, job: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Do a job in it. fds: request, reply and log, then the job's own. How it ended and what it used."""
        limits = Limits.of(job["limits"])
        if self.child and (self.jobs >= MOST_JOBS or _locked(limits) != _locked(self.limits)):
            self._stop()
        word = READY if self.child else self._start(limits)
        if word != READY:
            status, cpu, _ = self._stop()
            return told("setup", word, status, 0.0, cpu, 0)
        base, started, before = resident(self.seen, self.room), time.monotonic(), cpu_of(self.seen, self.room)
        self.jobs += 1
        ended, peak = "", 0
        with contextlib.suppress(OSError):  # it died while nobody looked: its end says how
            socket.send_fds(self.socket, [job["entry"].encode()], fds)
            ended, peak = follow(self.watch, self.seen, control, limits, self.room, fds[1], base, self.socket.fileno())
        wall = time.monotonic() - started
        if ended == "" and self._done():
            return told("", READY, 0, wall, cpu_of(self.seen, self.room) - before, peak)
        status, cpu, _ = self._stop()
        if ended == JUDGE_GONE:
            os._exit(0)
        return told(ended, READY, status, wall, cpu, peak)

    def _start(self, limits: Limits) -> bytes:
        """Return what the child says about its layers."""
        read, write = os.pipe()
        me, (here, there) = os.getpid(), socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.folder = with_folder(self.room)
        self.child = fork_alone(self.folder)
        if self.child == 0:
            os.close(read)
            become_lasting(there.fileno(), limits, write, self.folder, self.layers, me)
        os.close(write)
        there.close()
        self.socket, self.limits, self.jobs = here, limits, 0
        self.watch = os.pidfd_open(self.child)
        self.seen = outside(self.watch, self.room)
        try:
            return said(read)
        finally:
            os.close(read)

    def _done(self) -> bool:
        """Return whether the child says that its job is done; otherwise it has died."""
        with contextlib.suppress(OSError):
            return self.socket.recv(16, socket.MSG_DONTWAIT) == READY
        return False

    def _stop(self) -> tuple[int, float, int]:
        child, self.child = self.child, 0
        self.socket.close()
        return end(child, self.watch, self.folder)


def _locked(limits: Limits) -> Limits:
    """Return what a child is locked in with, which cannot change afterwards."""
    return replace(limits, wall_seconds=0, cpu_seconds=0, phases=(), idle_seconds=0)
