"""Ray over the nodes of a job: its head in the batch step, a worker on every other node through srun, ended with the attempt."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windtunnel.recipe import UserError

from .ray_node import end_process
from .scheduler import srun

PORT = "WINDTUNNEL_RAY_PORT"
"""Names the head's port where a firewall leaves no choice; otherwise it is one that is free."""
UP_SECONDS, HEAD_SECONDS = 180.0, 90.0
TELL_SECONDS = 15.0
"""After which it is told who is waited for, and again after as many."""
TICK = 0.2
_MODULE = ("-m", "windtunnel.cluster.ray_node")


@dataclass
class RayCluster:
    """A cluster that comes up and is ended.

    Attributes:
        python: the command that runs Python on a node. nodes: names, the head's first. gpus: of each.
        logs: the folder for what Ray prints.
        address: host:port of the head.
    """

    python: Sequence[str]
    nodes: Sequence[str]
    gpus: int
    logs: Path
    address: str = ""
    _started: dict[str, subprocess.Popen[Any]] = field(default_factory=dict)
    _told: dict[str, Any] = field(default_factory=dict)

    def up(self, say: Callable[[str], None], asked: Callable[[], object]) -> list[str]:
        """Start all nodes and wait until they have joined, saying how many have.

        Args:
            say: told of every node that joins, and who is waited for.
            asked: true where the wait is to end early.

        Returns:
            nodes that did not join in time.

        Raises:
            UserError: the port is taken, or the head did not start; says what it printed.
        """
        keep_to_ourselves()
        host, port = own_address(self.nodes), _port()
        self.address = f"{host}:{port}"
        self._start("head", [*self.python, *_MODULE, "head", self.address, str(self.gpus)])
        self._wait_for_head(host, port, say, asked)
        if len(self.nodes) > 1:
            others = self.nodes[1:]
            step = [*srun(others), *self.python, *_MODULE, "worker", self.address, str(self.gpus)]
            self._start("workers", step)
        self._watch()
        before = -1
        for passed, telling in ticks(UP_SECONDS):
            if asked():
                return []
            names = self._told.get("nodes", [])
            if len(names) != before and names:
                before = len(names)
                have = f"{self._told['cpus']} CPUs, {self._told['gpus']} GPUs"
                say(f"Ray: {before} of {len(self.nodes)} nodes, {have} at {self.address}")
            if before == len(self.nodes):
                return []
            if telling:
                absent = ", ".join(node for node in self.nodes if node not in names)
                say(f"waiting for Ray on {absent}: {passed:.0f} of {UP_SECONDS:.0f} s; {self._last('workers')}")
            self._require_alive()
        return [node for node in self.nodes if node not in self._told.get("nodes", [])]

    def down(self, seconds: float = 15.0) -> None:
        """End all that was started here and, through srun, on the other nodes; after so long each it is killed."""
        import psutil

        below: list[Any] = []
        # The head last: without it the others complain in their logs, and wait.
        for name in ("watch", "workers", "head"):
            process = self._started.pop(name, None)
            if process is None:
                continue
            # Before the parent ends: its children are listed by it, and those that survive it are nobody's afterwards.
            with contextlib.suppress(psutil.NoSuchProcess):
                below += psutil.Process(process.pid).children(recursive=True)
            end_process(process, seconds)
        for child in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()

    def _start(self, name: str, command: Sequence[str]) -> None:
        with open(self.logs / f"ray-{name}.log", "ab") as log:
            self._started[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _watch(self) -> None:
        """Follow what Ray says of its nodes, in a process that has Ray."""
        with open(self.logs / "ray-watch.log", "ab") as log:
            process = subprocess.Popen(
                [*self.python, *_MODULE, "watch", self.address],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._started["watch"] = process

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                with contextlib.suppress(ValueError):
                    self._told = json.loads(line)

        threading.Thread(target=read, name="ray-watch", daemon=True).start()

    def _wait_for_head(self, host: str, port: int, say: Callable[[str], None], asked: Callable[[], object]) -> None:
        for passed, telling in ticks(HEAD_SECONDS):
            if asked():
                return
            self._require_alive()
            with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=2.0):
                return
            if telling:
                gone = f"{passed:.0f} of {HEAD_SECONDS:.0f} s"
                say(f"waiting for Ray's head at {self.address}: {gone}; {self._last('head')}")
        raise UserError(f"Ray's head does not answer at {self.address} after {HEAD_SECONDS:.0f} s", f"see {self.logs}")

    def _require_alive(self) -> None:
        for name in ("head", "workers", "watch"):
            process = self._started.get(name)
            if process is not None and process.poll() is not None:
                raise UserError(f"Ray: {name} ended with exit code {process.returncode}: {self._last(name)}", f"see {self.logs}")

    def _last(self, name: str) -> str:
        """Return the line of a log that says most: the last that speaks of an error, or the last."""
        with contextlib.suppress(OSError):
            text = (self.logs / f"ray-{name}.log").read_text(encoding="utf-8", errors="replace")
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            # Ray prints hints after the error that ended it.
            told = [line for line in lines if any(word in line for word in ("Error", "error", "mismatch", "No module"))]
            return (told or lines or ["it printed nothing"])[-1][:300]
        return "it printed nothing"


def ticks(seconds: float) -> Iterator[tuple[float, bool]]:
    """Yield several times a second, until so many have passed: how many have, and whether to tell who is waited for."""
    began = told = time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        telling = now - told >= TELL_SECONDS
        told = now if telling else told
        yield now - began, telling
        time.sleep(TICK)


def keep_to_ourselves() -> None:
    """Give this process, and all that it starts, a token of its own for Ray, unless the user has chosen otherwise.

    Without one Ray takes ~/.ray/auth_token where there happens to be one, for the head alone: nobody who is given an address
    then gets in. Rays before 2.52 know no tokens, and take no notice.
    """
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def own_address(nodes: Sequence[str]) -> str:
    """Return the number under which the other nodes reach this one."""
    for other in nodes[1:]:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((socket.gethostbyname(other), 9))  # nothing is sent: only the way there is looked up
            return str(probe.getsockname()[0])
    with contextlib.suppress(OSError):
        return socket.gethostbyname(socket.gethostname())
    return "127.0.0.1"


def _port() -> int:
    """Return a port that is free here. Raises UserError where the one that is asked for is taken."""
    asked = os.environ.get(PORT, "0")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            # A port that the last attempt closed a moment ago is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", int(asked)))
            return int(probe.getsockname()[1])
    except (ValueError, OverflowError):
        raise UserError(f"{PORT}={asked} is no port", f"{PORT}=6379, or unset it for any free one") from None
    except OSError as error:
        what = f"{PORT}={asked}: the port is taken on {socket.gethostname()} ({error.strerror})"
        raise UserError(
            what, "another port, or unset it for any free one; `ray stop` there ends a cluster that was left"
        ) from None
