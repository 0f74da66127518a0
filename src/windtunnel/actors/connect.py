"""The Ray cluster that a job runs on: the one that RAY_ADDRESS names, one that runs here, or one of this machine alone."""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from json import dumps, loads
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

from windtunnel.recipe import UserError

VERSIONS = ">=2.50,<3"
"""Of Ray; what is used of it is as it was in 2.60, on which the tests run."""
ADDRESS = "RAY_ADDRESS"
JOINED = "WINDTUNNEL_RAY"
"""Environment of a job's processes on a cluster: see `Joined`."""
NODES = "WINDTUNNEL_RAY_NODES"
"""Environment: nodes that the cluster will have, which are waited for before anything is planned."""
AUTHENTICATION, TOKEN = "RAY_AUTH_MODE", "~/.ray/auth_token"
REACH_SECONDS = 10.0
ASK_SECONDS = 60.0
OPEN = "asks for no token"
ASK = f"""
import sys
from ray._private.services import find_gcs_addresses
from ray._raylet import GcsClient
for address in sys.argv[1:] or sorted(find_gcs_addresses())[:1]:
    GcsClient(address=address).get_all_node_info(timeout=10)
    print({OPEN!r})
"""
"""Asks a cluster, the one that is given or that runs here, without a token; in a process of its own."""
LINE = 200
"""Characters of a line that Ray says."""
HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
HTTP2_HEAD, HTTP2_SETTINGS = 9, 4
"""What a client of gRPC begins with, the bytes of a frame's head, and the kind of a server's first frame (RFC 9113)."""


@dataclass(frozen=True)
class Joined:
    """What a process of a job needs to find the others.

    Attributes:
        address: of the cluster. namespace: of the job's actors. group: name of its placement group.
        learners: ranks, which have the first bundles of the group; engines have those behind them. engines: how many.
        tensor: GPUs of an engine, 0 on CPUs.
        judges: names of the actors that judge answers, one a node.
        shared: whether each learner's bundle, and its GPU, is its engine's too.
    """

    address: str
    namespace: str
    group: str
    learners: int
    engines: int
    tensor: int
    judges: tuple[str, ...] = ()
    shared: bool = False

    def environment(self) -> dict[str, str]:
        """Return what tells a process."""
        mode = os.environ.get(AUTHENTICATION)
        return {JOINED: dumps(asdict(self))} | ({} if mode is None else {AUTHENTICATION: mode})


def joined() -> Joined | None:
    """Return what this process was told of the cluster that it runs on, and connect to it; None: it runs on none."""
    told = os.environ.get(JOINED)
    if not told:
        return None
    content = loads(told)
    found = Joined(**content | {"judges": tuple(content["judges"])})
    # Here, not at first use: a cluster that is gone should end a process before it has loaded anything.
    _connect(found.address, found.namespace)
    return found


def own_address() -> str:
    """Return this node's address, as the other nodes reach it."""
    import ray

    return str(ray.util.get_node_ip_address())


@contextlib.contextmanager
def join(namespace: str) -> Iterator[str]:
    """Connect to a cluster, start one on this machine where none runs, and yield its address.

    Raises:
        UserError: Ray is not installed, or another version than is known to work, or the cluster cannot be reached.
    """
    require_ray()
    address = os.environ.get(ADDRESS)
    if address and address not in ("auto", "local"):
        _require_reachable(address)
    _settle_token(address)
    import ray

    # Named, then running, then one of its own: nobody has to say that a laptop is a cluster of one.
    given = address or _running()
    _connect(given if given != "local" else None, namespace)
    try:
        yield str(ray.get_runtime_context().gcs_address)
    finally:
        ray.shutdown()


def expected_nodes() -> int:
    """Return how many nodes the cluster will have; 0: nobody said. Raises UserError."""
    text = os.environ.get(NODES, "0")
    if not text.isdecimal():
        raise UserError(f"{NODES}={text!r} is no number of nodes", f"{NODES}=2, or unset it to take the cluster as it is")
    return int(text)


def require_ray() -> str:
    """Return Ray's version. Raises UserError where it is not installed, or is one that this package was not tried with."""
    try:
        version = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            "stages.rl.placement is ray, and Ray is not installed here", "pip install 'windtunnel[ray]', on every node"
        ) from None
    # What is used of Ray is partly its own: another major version may have it elsewhere, and fail in the middle of a run.
    if version not in SpecifierSet(VERSIONS):
        raise UserError(
            f"Ray {version} is installed, and this package works with ray{VERSIONS}",
            f"pip install 'ray{VERSIONS}', on every node",
        )
    return version


def _connect(address: str | None, namespace: str) -> None:
    """Connect this process, once. Raises UserError."""
    import ray

    if ray.is_initialized():
        return
    _shorten()
    # Ray takes SIGTERM for itself, and with it the request to save and end.
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=address or "local", namespace=namespace, log_to_driver=False, logging_level=logging.ERROR,
            include_dashboard=None if address else False,
        )  # fmt: skip
    except (RuntimeError, ConnectionError, ValueError, TimeoutError) as error:
        what = " ".join(str(error).split())[:400]
        # Ray tells of all failures in one kind of error; this one has a remedy of its own.
        other = "Version mismatch" in what
        fix = "install the same Ray and Python on every node" if other else "see that `ray status` works on this machine"
        raise UserError(f"the Ray cluster at {address or 'this machine'} cannot be used: {what}", fix) from None
    finally:
        if callable(handler) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _shorten() -> None:
    """Have Ray say what happens to its nodes in one line each, on standard error.

    It would print their last 40 lines of log on standard output, where JSON may be read.
    """
    from ray._private import worker

    said: set[str] = set()

    def tell(data: Mapping[str, Any], ignore_prefix: bool) -> None:
        for text in data["lines"]:
            first = next((line.strip() for line in str(text).splitlines() if line.strip()), "")[:LINE]
            # A node that is lost is told of by each of its processes.
            if first and first not in said:
                said.add(first)
                print(f"Ray: {first}", file=sys.stderr, flush=True)

    # A name that Ray may give up; then its own lines appear, and nothing else changes.
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = tell


def _running() -> str | None:
    """Return the address of a cluster that was started on this machine."""
    from ray._private.services import find_gcs_addresses  # what ray.init(address="auto") uses

    found: set[str] = set(find_gcs_addresses())
    return min(found) if found else None


def _require_reachable(address: str) -> None:
    if address.startswith("ray://"):
        raise UserError(
            f"{ADDRESS}={address} is an address of Ray Client, through which nothing can be placed",
            f"the head node's own address, such as {ADDRESS}={address.removeprefix('ray://').rpartition(':')[0] or 'HEAD'}:6379",
        )
    # A plain connection first: its failure says at once what is wrong.
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        with socket.create_connection((host or "127.0.0.1", int(port)), timeout=REACH_SECONDS) as there:
            if os.environ.get("RAY_USE_TLS", "0") != "0" or _speaks_grpc(there):
                return
    except ValueError:
        raise UserError(
            f"{ADDRESS}={address!r} is no address", f"host:port of a head node, such as {ADDRESS}=10.0.0.1:6379"
        ) from None
    except OSError as error:
        why = error.strerror or str(error)
        raise UserError(
            f"{ADDRESS}={address}: nothing answers there ({why})",
            f"start Ray there (ray start --head --port={port}), or unset {ADDRESS} to use this machine alone",
        ) from None
    # Ray itself would ask again and again.
    raise UserError(
        f"{ADDRESS}={address}: the program that has this port is no Ray",
        f"ray start --head --port=... on a free port, and that address; or unset {ADDRESS} to use this machine alone",
    )


def _settle_token(address: str | None) -> None:
    """Say whether a token is offered to the cluster, before Ray is imported, which settles it for this process.

    `ray start` asks for the token that lies in the home folder, and who is given an address does not offer it of its own
    accord. To a cluster without one it must not be offered: this process would expect it of the cluster too, which then
    takes its actors for dead.
    """
    if AUTHENTICATION in os.environ or address == "local" or not Path(TOKEN).expanduser().is_file():
        return
    given = [] if address in (None, "", "auto") else [str(address).rpartition("://")[2]]
    # A cluster that does not answer is told of later, in the words of whoever connects.
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            [sys.executable, "-c", ASK, *given], env={**os.environ, AUTHENTICATION: "disabled"},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ASK_SECONDS, check=False,
        )  # fmt: skip
        if "AuthenticationError" in done.stderr:
            os.environ[AUTHENTICATION] = "token"
        elif OPEN in done.stdout:
            os.environ[AUTHENTICATION] = "disabled"


def _speaks_grpc(there: socket.socket) -> bool:
    """Return whether a server begins as those of gRPC do: with its settings. Raises OSError where it says nothing."""
    there.sendall(HTTP2_HELLO)
    answer = b""
    while len(answer) < HTTP2_HEAD and (more := there.recv(HTTP2_HEAD - len(answer))):
        answer += more
    return len(answer) == HTTP2_HEAD and answer[3] == HTTP2_SETTINGS
