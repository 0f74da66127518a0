"""An engine on another node of a Ray cluster: an actor that has an `EngineProcess` there, and what stands for it here."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from windtunnel.actors import ActorLost, Joined, NoAnswer, answer_of, engine_options, release
from windtunnel.generate import GenerationJob
from windtunnel.run import print_to

from .engine import Serving
from .engine_process import EngineProcess, RemoteEngine, Told
from .errors import BrokenSnapshot, EngineFailed, StaleWeights

if TYPE_CHECKING:
    from .vllm_engine import VLLMSettings

LISTEN_SECONDS = 2.0
"""For which an actor waits for news before it answers that there is none."""
SILENT_SECONDS = 60.0
"""From which an actor that does not even say that there is no news counts as gone."""
CLOSE_SECONDS = 25.0
THREADS = 6
"""Calls that an actor answers at once: one listens, one loads, one closes."""
WORDS = {
    "load": "taking version {1} of the weights", "prepare": "making ready for weights", "join": "joining the learners",
    "receive": "receiving version {0} of the weights",
}  # fmt: skip
"""What an actor is asked for, by method: for the messages of waits."""


class EngineHost:
    """The actor: an engine's process on its node. What it says is kept until it is asked for."""

    def __init__(
        self, name: str, dtype: torch.dtype, serving: Serving, limit: float, vllm: VLLMSettings | None,
        on_gpu: bool, log: Path,
    ) -> None:  # fmt: skip
        print_to(log)
        self._news: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        if vllm is not None:
            from .vllm_python import require_vllm

            # Of this node: its GPUs are those that Ray gave this actor, and so is its interpreter.
            devices = ",".join(str(number) for number in range(vllm.tensor)) if on_gpu else None
            vllm = replace(vllm, devices=devices, python=require_vllm())
        self._process = EngineProcess(
            dtype, "cuda:0" if on_gpu else "cpu", limit=limit, serving=serving, vllm=vllm,
            answered=lambda number, answer: self._news.put(("answered", number, answer)),
            ended=lambda why: self._news.put(("ended", f"{why} ({name} on {socket.gethostname()})")),
        )  # fmt: skip

    def news(self) -> list[tuple[Any, ...]]:
        """Return what was said since the last call; waits a little for something."""
        found = []
        with contextlib.suppress(queue.Empty):
            # One wait, then whatever else is there: fewer calls of the actor.
            found.append(self._news.get(timeout=LISTEN_SECONDS))
            while True:
                found.append(self._news.get_nowait())
        return found

    def call(self, method: str, *arguments: Any) -> tuple[bool, Any]:
        """Return whether a method of the engine's process ended well, and its result or what it refused with."""
        try:
            return True, getattr(self._process, method)(*arguments)
        except (BrokenSnapshot, StaleWeights, EngineFailed) as error:
            # As class and words: an exception with arguments of its own does not always survive pickling.
            return False, (type(error), str(error))

    def submit(self, jobs: Sequence[tuple[int, GenerationJob]]) -> None:
        """See `EngineProcess.submit`."""
        self._process.submit(jobs)

    def close(self) -> None:
        """See `EngineProcess.close`."""
        self._process.close()


class PlacedEngine(RemoteEngine):
    """An engine whose process is on its node of the cluster.

    Args:
        found: the cluster.
        number: of the engine among all of the job's.
        name: for messages.
        dtype: see `EngineProcess`; so are limit, serving, answered, ended and vllm.
        log: what the actor and its process print goes to the end of this file, on a disk that all nodes see.
    """

    def __init__(
        self, found: Joined, number: int, name: str, dtype: torch.dtype, *, limit: float, serving: Serving, answered: Told,
        ended: Callable[[str], None], vllm: VLLMSettings | None, log: Path,
    ) -> None:  # fmt: skip
        import ray

        self._name, self._limit, self._answered, self._ended = name, limit, answered, ended
        self._closed, self._why = False, ""
        host: Any = ray.remote(EngineHost)
        options = engine_options(found, number)
        self._actor = host.options(max_concurrency=THREADS, **options).remote(
            name, dtype, serving, limit, vllm, bool(found.tensor), log
        )
        self._listener = threading.Thread(target=self._listen, name=f"{name}-listener", daemon=True)
        self._listener.start()

    def _ask(self, method: str, *arguments: Any) -> Any:
        asked = f"{self._name}: {WORDS[method].format(*arguments)}"
        try:
            fine, value = answer_of(self._actor.call.remote(method, *arguments), asked, self._limit + SILENT_SECONDS)
        except (NoAnswer, ActorLost) as error:
            # The actor of an engine that has ended is let go, and what it died of was told before.
            raise EngineFailed(self._why or str(error)) from None
        if fine:
            return value
        kind, message = value
        raise kind(message)

    def submit(self, jobs: Sequence[tuple[int, GenerationJob]]) -> None:
        """See `RemoteEngine.submit`."""
        self._actor.submit.remote(list(jobs))

    def close(self) -> None:
        """End the process and the actor."""
        self._closed = True
        with contextlib.suppress(Exception):
            answer_of(self._actor.close.remote(), f"{self._name}: closing", CLOSE_SECONDS)
        release(self._actor)
        if threading.current_thread() is not self._listener:
            self._listener.join(timeout=LISTEN_SECONDS + 1)

    def _listen(self) -> None:
        """Pass on what the engine says, until it or its node is gone."""
        why, seconds = "", self._limit + SILENT_SECONDS  # the first answer comes when Ray has started the actor
        while not why and not self._closed:
            try:
                for kind, *content in answer_of(self._actor.news.remote(), f"{self._name}: news of its answers", seconds):
                    if kind == "answered":
                        self._answered(*content)
                    else:
                        # The engine's end ends this thread too; `Engines` starts another one in its place.
                        why = content[0]
                seconds = SILENT_SECONDS
            except (NoAnswer, ActorLost) as error:
                why = str(error)
            except Exception as error:  # what its constructor refused, or Ray shutting down
                why = f"{self._name}: {error}"
        if not self._closed:
            self._why = why
            release(self._actor)
            self._ended(why)
