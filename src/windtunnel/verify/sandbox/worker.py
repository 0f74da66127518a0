"""The judge's handle on one warm worker."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from windtunnel.recipe import UserError

from . import cgroup
from .channel import memory_file, write_request
from .layers import Layers
from .outcome import infrastructure, judge_end
from .paths import readable_paths
from .removing import remove
from .starting import Template, last_words, receive
from .types import MOST_FILES, Outcome, SandboxJob

SYSTEMS = {"darwin": "macOS", "win32": "Windows"}
# "${PWD}" is read alike by a shell and by PowerShell.
IN_A_CONTAINER = (
    "run it in a Linux container, from the folder with your files: "
    "docker run --rm -it -v \"${PWD}:/work\" -w /work python:3.12 bash, and in it pip install 'windtunnel[verify]'; "
    "then the same command (windtunnel verify layers says what protects you there)"
)
# Beyond the job's own time: fork, layers, killing. A worker that is silent for longer is sick.
GRACE_SECONDS = 60.0


class Sandbox:
    """One warm worker, which runs one job at a time in a fresh child of its own; threads wait their turn.

    It starts on first use, as a fork of a process that has imported what jobs need, and is replaced when it is sick. Use as a
    context manager, or call close.

    Args:
        preload: modules imported once, before any candidate; those that the entries need belong here. 'module:function' is
            also called, to pay once for what would be computed in each child.
        environment: variables for the worker and its children, beside a few of this process's.
        devices: files of /dev that children may use, such as /dev/nvidia0.
        namespaces: False does as if the kernel gave none, nor a memory cgroup, to see what is left then.
        lasting: one child serves all jobs, so that what it sets up (a GPU's context) is there for the next. For jobs that run no
            candidate's code: what one of them leaves behind, the next one finds.
        template: the process of another sandbox of the same preload and environment (`twin`).
    """

    def __init__(
        self,
        preload: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        devices: Sequence[str] = (),
        *,
        namespaces: bool = True,
        lasting: bool = False,
        template: Template | None = None,
    ) -> None:
        if not sys.platform.startswith("linux"):
            raise UserError(
                f"candidates are only run on Linux, and this is {SYSTEMS.get(sys.platform, sys.platform)}: "
                "the sandbox is made of Linux's namespaces, Landlock and seccomp",
                IN_A_CONTAINER,
            )
        # What a worker is told, and a twin's too.
        self._setup: dict[str, Any] = {"devices": list(devices), "namespaces": namespaces, "lasting": lasting}
        self._template = template or Template(preload, environment or {})
        # The last user ends the process that all are forks of.
        self._template.users += 1
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._closed = self._stopped = False
        self.restarts = 0

    def twin(self) -> Sandbox:
        """Return another one of the same kind, whose worker is a fork of the same process, so that it starts at once."""
        return Sandbox(template=self._template, **self._setup)

    def begin(self) -> None:
        """Start what takes long, and do not wait for it."""
        if self._setup["namespaces"]:
            cgroup.prepare()
        self._template.begin()

    def start(self) -> Layers:
        """Start the worker if it does not run, let a trial child try to get out, and say which layers stand."""
        with self._lock:
            faults = self._running().layers
        with tempfile.NamedTemporaryFile(prefix="windtunnel-secret-") as secret:
            job = SandboxJob("windtunnel.verify.sandbox.selfcheck:main", {"parent": os.getpid(), "secret": secret.name})
            outcome = self.run(job)
        worked = outcome.message.get("worked") if outcome.finished else [f"the trial failed: {outcome.detail}"]
        return Layers(faults, tuple(map(str, worked or ())))

    def run(self, job: SandboxJob) -> Outcome:
        """Run a job in a fresh child and wait for it; what the candidate does is told in the outcome, never raised."""
        with self._lock:
            try:
                worker = self._running()
            except UserError as error:
                return infrastructure(error.message)
            try:
                with job.within():
                    return worker.run(job)
            except BaseException as error:
                # Whatever came between order and reply (an interrupt too): the next job would read what belongs to this one.
                self.restarts += 1
                self._stop()
                if not isinstance(error, OSError | EOFError | ValueError | OverflowError):
                    raise
                return infrastructure(f"the warm worker failed and will be replaced: {error}")

    def stop(self) -> None:
        """End at once, from another thread than the one whose job runs.

        What becomes of the job is an infrastructure failure, as of any that comes later. Twins can start no worker either.
        `close` clears up.
        """
        self._stopped = True
        self._template.stop()
        worker = self._worker
        if worker is not None:
            worker.process.kill()

    def close(self) -> None:
        """End the worker and all it started."""
        with self._lock:
            self._stop()
            if not self._closed:
                self._template.release()
            self._closed = True

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _running(self) -> _Worker:
        assert not self._closed, "this sandbox was closed"
        if self._worker is None and not self._stopped:
            if self._setup["namespaces"]:
                _refuse_whole_tmp()
            self.begin()
            self._worker = _Worker(self._setup, self._template)
            if self._worker.again:
                # The kernel gives half of what namespaces need: what is left does without them.
                self._stop()
                self._setup["namespaces"] = False
                self._worker = _Worker(self._setup, self._template)
        if self._worker is None or self._stopped:  # looked at once more: whoever stops it before does not see the worker
            self._stop()
            raise UserError("the sandbox was stopped")
        return self._worker

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


def _refuse_whole_tmp() -> None:
    """Refuse an environment that is /tmp itself: a candidate may read its environment, but not all temporary files.

    Raises:
        UserError: Python, one of its package folders or this package is /tmp.
    """
    if whole := [path for path in readable_paths(()) if os.path.realpath(path) == "/tmp"]:
        raise UserError(
            f"candidates may read Python's environment but not the temporary files of others, and both are {whole[0]}",
            "install windtunnel into an environment in a folder of its own, such as /tmp/environment",
        )


def _memory_group() -> tuple[Path | None, str]:
    """Return a memory cgroup, or why there is none."""
    try:
        return cgroup.make(), ""
    except OSError as error:
        return None, str(error)


class _Worker:
    """A started worker process and the socket to it."""

    def __init__(self, setup: Mapping[str, Any], template: Template) -> None:
        self.folder = tempfile.mkdtemp(prefix="windtunnel-worker-")
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the worker)
        scratch = os.path.join(self.folder, "scratch")
        os.mkdir(scratch)
        os.chmod(self.folder, 0o711)
        self.group, no_group = _memory_group() if setup["namespaces"] else (None, "switched off")
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control = here
        self.jobs = 0
        try:
            self.process = template.fork(there, self.errors.fileno())
        except BaseException:  # raised again: an interrupt leaves nothing open either
            here.close()
            self._forget()
            raise
        finally:
            there.close()
        try:
            group = {"group": None if self.group is None else str(self.group), "no_group": no_group}
            here.send(json.dumps({**setup, **group, "scratch": scratch}).encode())
            answer = self._receive(GRACE_SECONDS)
            self.again = "again" in answer
            self.layers: dict[str, str] = answer.get("layers", {})
            if answer.get("scratch") != scratch:  # not needed; what does not exist cannot be left behind
                remove(self.folder)
        except BaseException as error:
            text = self._printed()
            self.close()
            if not isinstance(error, OSError | EOFError | ValueError):
                raise
            raise UserError(f"the sandbox's worker did not start: {text or error}") from None

    def run(self, job: SandboxJob) -> Outcome:
        limits = job.limits
        self.jobs += 1
        number = self.jobs
        assert len(job.files) <= MOST_FILES, f"{len(job.files)} files"
        request = write_request(job.message, job.buffers)
        reply, log = memory_file("reply", limits.result_bytes + 4096), memory_file("log", limits.log_bytes)
        try:
            # Numbered: an answer that comes late must not be taken for the next job's.
            order = json.dumps({"job": number, "entry": job.entry, "limits": asdict(limits)}).encode()
            socket.send_fds(self.control, [order], [request, reply, log, *job.files])
            end = self._receive(limits.wall_seconds + sum(own for _, own in limits.phases) + GRACE_SECONDS)
            if end.get("job") != number:
                raise ValueError(f"it was asked for job {number} and tells the end of job {end.get('job')}")
            return judge_end(end, reply, log, limits, keep=job.keep)
        finally:
            for fd in (request, reply, log):
                os.close(fd)

    def close(self) -> None:
        """End the worker: it dies with its children, and its folder goes."""
        self.control.close()
        self.process.close()
        self._forget()

    def _forget(self) -> None:
        self.errors.close()
        remove(self.folder)
        if self.group is not None:
            cgroup.remove(self.group)

    def _receive(self, seconds: float) -> dict[str, Any]:
        data, _ = receive(self.control, seconds, self._printed)
        answer: dict[str, Any] = json.loads(data)
        return answer

    def _printed(self) -> str:
        return last_words(self.errors.fileno())
