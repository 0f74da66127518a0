"""The processes that generate together where ranks share a model's experts: the caller's, which leads, and those it starts.

    python -m windtunnel.generate.team REQUEST     one that follows

Nobody has to start anything by hand: whoever loads such a model becomes the first rank and starts one process for each
further GPU (or, for tests, on the CPU). They end with the generator, and when the first rank is gone.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from windtunnel.checkpoint import Which
from windtunnel.model import ExpertGroup
from windtunnel.recipe import UserError

from .batched import BatchedGenerator
from .hf import HFDecoder
from .shared_experts import Leader, Team, follow
from .text import TextCodec

LOOK_SECONDS = 0.5
TIMEOUT = datetime.timedelta(hours=24)
"""A server may wait so long for the next request."""
Load = Callable[[torch.device, ExpertGroup], Any]
"""Loads this rank's model."""


@dataclass(frozen=True)
class Named:
    """A model by what another process finds it by.

    Attributes:
        path: of a run or a Hugging Face folder.
        which: a run's checkpoint. base: the folder beneath a run's adapter; None: where the run found it.
        new: of a folder, the fields of `NewRows` for tokens that it lacks.
    """

    path: str
    which: Which = "best"
    base: str | None = None
    new: dict[str, Any] | None = None


@dataclass(frozen=True)
class Request:
    """What a process that follows is told: what to load, and whom to meet where.

    Attributes:
        weights: what to load. device: 'cuda' or 'cpu'.
    """

    weights: Named
    device: str
    rank: int
    size: int
    port: int

    @classmethod
    def parse(cls, text: str) -> Request:
        """Return what `json` wrote."""
        told = json.loads(text)
        return cls(**told | {"weights": Named(**told["weights"])})


class TeamLeader(Leader):
    """A `Leader` that started its team; closing it ends the others."""

    def __init__(self, local: HFDecoder, team: Team, followers: list[subprocess.Popen[bytes]]) -> None:
        super().__init__(local, team)
        self._followers, self._closing = followers, threading.Event()
        threading.Thread(target=self._watch, name="team-watch", daemon=True).start()

    def _watch(self) -> None:
        """Fail as soon as another rank is gone: between GPUs nobody else would tell who waits for it."""
        while not self._closing.wait(LOOK_SECONDS):
            for rank, process in enumerate(self._followers, 1):
                if process.poll() is None or self._closing.is_set():
                    continue
                self.fail(f"rank {rank} of {self.team.size}, which shares the experts, ended with code {process.returncode}")
                for group in (dist.group.WORLD, self.team.experts.group):
                    _abort(group)
                return

    def close(self, timeout: float = 10.0) -> None:
        """End the other ranks."""
        self._closing.set()
        lost = bool(self._failed)
        with contextlib.suppress(RuntimeError):  # some rank is gone already
            self.end()
        _end(self._followers, 0.0 if lost else timeout)
        if dist.is_initialized():
            _leave(abort=lost)


class SharedGenerator(BatchedGenerator):
    """A `BatchedGenerator` on the first rank of a team; closing it ends the others."""

    def __init__(self, leader: TeamLeader, text: TextCodec, *, slots: int, queue: int) -> None:
        super().__init__(leader, text, slots=slots, queue=queue)
        self._leader = leader

    def close(self, timeout: float = 10.0) -> None:
        """End the worker after the step under way, and the other ranks."""
        super().close(timeout)
        self._leader.close(timeout)


def start_team(load: Load, weights: Named, device: torch.device, size: int) -> TeamLeader:
    """Return a decoder whose model's experts lie on `size` ranks, of which this process is the first.

    Args:
        load: loads this rank's model.
        weights: by which the others load theirs.
        device: a CPU for all, or a GPU: then rank n takes the n-th.
        size: ranks.

    Raises:
        UserError: another rank could not load its part.
    """
    if dist.is_initialized():
        raise UserError("a model whose experts are shared cannot be loaded beside another one", "close the other one first")
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    # All decode weights at once: threads of each for all cores would wait for one another at every tensor.
    threads = max(1, torch.get_num_threads() // size)
    torch.set_num_threads(threads)
    followers = []
    for rank in range(1, size):
        told = asdict(Request(weights, device.type, rank, size, store.port))
        command = [sys.executable, "-m", "windtunnel.generate.team", json.dumps(told)]
        followers.append(
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": str(threads)}
            )
        )
    try:
        # Before the group is formed, which waits for all its members for as long as TIMEOUT: one that cannot start is seen here.
        _wait(store, "here", followers)
        device = _device(device.type, 0)
        team = _join(store, device, 0, size)
        local = HFDecoder(load(device, team.experts))
        _wait(store, "loaded", followers)
    except BaseException:
        _end(followers, 0.0)
        if dist.is_initialized():
            dist.destroy_process_group()
        raise
    return TeamLeader(local, team, followers)


def _abort(group: Any) -> None:
    """Let whoever waits for other ranks' GPUs go on, with an error or with numbers that mean nothing."""
    with contextlib.suppress(RuntimeError, AttributeError):  # between CPUs waiting ends by itself
        group._get_backend(torch.device("cuda")).abort()


def _leave(abort: bool) -> None:
    """Leave all groups; abort: without the others, who are gone or wait in the middle of a pass."""
    if abort and dist.get_backend() == "nccl":
        dist.distributed_c10d._abort_process_group()
    else:
        dist.destroy_process_group()


def _device(kind: str, rank: int) -> torch.device:
    """Return a rank's device. NCCL and `set_device` take no GPU without its number."""
    return torch.device("cuda", rank) if kind == "cuda" else torch.device(kind)


def _join(store: dist.Store, device: torch.device, rank: int, size: int) -> Team:
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.PrefixStore("team", store), rank=rank, world_size=size, timeout=TIMEOUT)
    group = dist.group.WORLD if backend == "gloo" else dist.new_group(backend="gloo", timeout=TIMEOUT)
    assert group is not None
    return Team(rank, size, group, ExpertGroup(rank, size, dist.new_group()))


def _wait(store: dist.Store, what: str, followers: list[subprocess.Popen[bytes]]) -> None:
    """Wait until all followers have said so. Raises UserError as soon as one of them refuses or is gone."""
    for rank, process in enumerate(followers, 1):
        while not store.check([f"{what}-{rank}"]):
            # Asked before the store is: a process that refused and ended in between has left its words there.
            gone = process.poll() is not None
            if store.check([f"refused-{rank}"]):
                raise UserError(*json.loads(store.get(f"refused-{rank}")))
            if gone:
                raise UserError(
                    f"rank {rank} of {len(followers) + 1}, which shares the experts, ended with code {process.returncode}",
                    "its own message stands above",
                )
            time.sleep(0.02)


def _end(followers: list[subprocess.Popen[bytes]], timeout: float) -> None:
    until = time.monotonic() + timeout
    for process in followers:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _refusing(store: dist.Store, rank: int) -> Iterator[None]:
    """Tell the first rank why this one cannot go on."""
    try:
        yield
    except UserError as error:
        store.set(f"refused-{rank}", json.dumps([error.message, error.fix]))
        raise SystemExit(error.exit_code) from None


def main() -> None:
    """Be a rank that follows."""
    from .source import loader_of

    request, leader = Request.parse(sys.argv[1]), os.getppid()
    store = dist.TCPStore("127.0.0.1", request.port, None, False)
    device = _device(request.device, request.rank)
    with _refusing(store, request.rank):
        store.set(f"here-{request.rank}", "")
        team = _join(store, device, request.rank, request.size)
        local = HFDecoder(loader_of(request.weights)(device, team.experts))
        store.set(f"loaded-{request.rank}", "")
    code = 0
    try:
        follow(local, team)
    except RuntimeError as error:
        # Where the first rank is gone its messages end, and nobody is left to be told.
        if os.getppid() == leader:
            print(f"rank {request.rank} of {request.size}, which shares the experts: {error}", file=sys.stderr, flush=True)
            code = 1
    os._exit(code)  # communicators of ranks that are gone would be waited for


if __name__ == "__main__":
    main()
