"""An engine in a process of its own: asked through a pipe, with a limit on every answer; weights reach it by files alone."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from windtunnel.generate import GenerationFailed, GenerationJob, Ticket
from windtunnel.run import print_to
from windtunnel.train import child_context

from .engine import Answers, InferenceEngine, Receipt, Scores, Serving
from .errors import BrokenSnapshot, EngineFailed, EngineSilent, StaleWeights

if TYPE_CHECKING:
    from .transfer import Invitation
    from .vllm_engine import VLLMSettings

LIMIT_SECONDS = 600.0
BEAT_SECONDS = 1.0
PRELOAD = f"{__package__}.engine"
_TOLD = (BrokenSnapshot, StaleWeights)
"""What an engine refuses, and goes on after."""


@dataclass(frozen=True)
class Answered:
    """What an engine made of a job: as `windtunnel.generate.Ticket`; `versions` of the weights that gave each draw."""

    tokens: tuple[int, ...]
    drawn: tuple[tuple[int, float], ...]
    finish: str
    versions: tuple[int, ...]


Told = Callable[[int, Answered | str], None]
"""Takes a job's number and its answer, or why there is none; called from the thread that listens to the engine."""


class RemoteEngine(ABC):
    """`InferenceEngine`'s methods for an engine that is not in this process: what is used of one, wherever it runs."""

    def load(self, path: Path, version: int) -> Receipt:
        """See `InferenceEngine.load`. The receipt's version is that which was asked for, or this raises."""
        return self._taken("load", version, path, version)

    def prepare(self, config: dict[str, Any], tokens: int, base: Path | None = None) -> None:
        """See `InferenceEngine.prepare`."""
        self._ask("prepare", config, tokens, base)

    def join(self, invitation: Invitation) -> None:
        """See `InferenceEngine.join`."""
        self._ask("join", invitation)

    def receive(
        self, version: int, config: dict[str, Any], canary: dict[str, Any], adapter: dict[str, Any] | None = None
    ) -> Receipt:
        """See `InferenceEngine.receive`. The receipt's version is that which was asked for, or this raises."""
        return self._taken("receive", version, version, config, canary, adapter)

    @abstractmethod
    def submit(self, jobs: Sequence[tuple[int, GenerationJob]]) -> None:
        """Have numbered jobs answered, together; an engine that is gone says so by itself."""

    @abstractmethod
    def close(self) -> None:
        """End the engine."""

    @abstractmethod
    def _ask(self, method: str, *arguments: Any) -> Any:
        """Return the engine's answer; raise EngineFailed, or what the engine refused with."""

    def _taken(self, method: str, version: int, *arguments: Any) -> Receipt:
        receipt: Receipt = self._ask(method, *arguments)
        # An engine that reports success with other weights is the fault that no exception shows.
        if receipt.version != version:
            raise StaleWeights(f"asked to {method} version {version} of the weights, the engine has version {receipt.version}")
        return receipt


class EngineProcess(RemoteEngine):
    """An engine in another process. Leave the `with` block to end it.

    Args:
        dtype: see `InferenceEngine`.
        device: see `InferenceEngine`.
        limit: seconds that any answer may take, with whatever must be imported before the first; of jobs, that may pass
            without a token of any.
        threads: of its own for products on the CPU; None: as many as torch takes.
        serving: see `InferenceEngine`.
        answered: told of each job's answer.
        ended: told why the process has ended or was ended, unless it was closed.
        vllm: it is vLLM, started so; None: transformers.
        log: what transformers prints goes to the end of this file; None: to where this process prints. vLLM's settings name its.
    """

    def __init__(
        self, dtype: torch.dtype, device: str = "cpu", *, limit: float = LIMIT_SECONDS, threads: int | None = None,
        serving: Serving | None = None, answered: Told | None = None, ended: Callable[[str], None] | None = None,
        vllm: VLLMSettings | None = None, log: Path | None = None,
    ) -> None:  # fmt: skip
        self._limit, self._answered, self._ended = limit, answered, ended
        self._ours: Connection
        self._process: Any
        if vllm is None:
            self._ours, self._process = _start((dtype, device, serving), threads, log)
        else:
            from .vllm_engine import start_vllm

            assert serving is not None
            self._ours, self._process = start_vllm(dtype, serving, vllm)
        # vLLM ends its workers first, and gives back their GPUs.
        self._patience = 1.0 if vllm is None else 20.0
        self._replies: queue.SimpleQueue[tuple[bool, Any] | None] = queue.SimpleQueue()
        self._sending, self._asking = threading.Lock(), threading.Lock()
        self._open: set[int] = set()
        self._heard, self._closed, self._why = time.monotonic(), False, ""
        self._listener = threading.Thread(target=self._listen, name="engine-listener", daemon=True)
        self._listener.start()

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Return the number of its process."""
        return int(self._process.pid)

    def score(self, tokens: Tensor) -> Scores:
        """See `InferenceEngine.score`."""
        scores: Scores = self._ask("score", tokens)
        return scores

    def generate(self, prompts: Tensor, new_tokens: int, seed: int) -> Answers:
        """See `InferenceEngine.generate`."""
        answers: Answers = self._ask("generate", prompts, new_tokens, seed)
        return answers

    def save(self, file: Path) -> int:
        """See `InferenceEngine.save`."""
        version: int = self._ask("save", file)
        return version

    def submit(self, jobs: Sequence[tuple[int, GenerationJob]]) -> None:
        """See `RemoteEngine.submit`: by `ended`."""
        # Before anything is sent: an answer could be there before this thread goes on.
        self._open |= {number for number, _ in jobs}
        self._heard = time.monotonic()
        with contextlib.suppress(OSError), self._sending:
            self._ours.send(("submit", list(jobs)))

    def close(self) -> None:
        """End the process."""
        self._closed = True
        with contextlib.suppress(OSError), self._sending:
            self._ours.send(("close", []))
        self._process.join(timeout=self._patience)  # it ends by itself, unless it is at work
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        if threading.current_thread() is not self._listener:
            self._listener.join()
        self._ours.close()

    def _ask(self, method: str, *arguments: Any) -> Any:
        with self._asking:
            try:
                # Tensors as numpy: torch's own way passes handles that need a server of their own.
                with self._sending:
                    self._ours.send((method, [a.numpy() if isinstance(a, Tensor) else a for a in arguments]))
                reply = self._replies.get(timeout=self._limit)
            except queue.Empty:
                # It cannot be asked again: its late answer would be taken for that to the next question.
                self._kill(f"the engine did not answer {method!r} within {self._limit:.4g} s and was ended")
                raise EngineSilent(self._why) from None
            except OSError:
                self._listener.join(timeout=self._limit)
                reply = None
        if reply is None:
            self._replies.put(None)  # whoever asks next is told the same
            raise EngineFailed(f"{self._why} when asked to {method}")
        fine, value = reply
        if not fine:
            raise value
        return _with_tensors(value)

    def _kill(self, why: str) -> None:
        self._why = why
        self._process.kill()

    def _listen(self) -> None:
        """Pass on what the engine says until it is gone; end one that hangs."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                # In short waits, so that an engine that hangs is ended by the thread that listens, without another timer.
                while not self._ours.poll(min(BEAT_SECONDS, self._limit)):
                    # What it started may have the pipe's other end too, which then stays open after its death.
                    if not self._process.is_alive() and not self._ours.poll():
                        raise EOFError
                    if self._open and not self._why and time.monotonic() - self._heard > self._limit:
                        left = f"{len(self._open)} answers outstanding"
                        self._kill(f"the engine made no token within {self._limit:.4g} s, with {left}, and was ended")
                kind, content = self._ours.recv()
                self._heard = time.monotonic()
                if kind == "reply":
                    self._replies.put(content)
                elif kind == "answered":
                    number, answer = content
                    self._open.discard(number)
                    assert self._answered is not None
                    self._answered(number, answer)
        self._process.join(timeout=5.0)
        self._why = self._why or f"the engine's process ended with exit code {self._process.exitcode}"
        self._replies.put(None)
        if self._ended is not None and not self._closed:
            self._ended(self._why)


def _start(given: tuple[Any, ...], threads: int | None, log: Path | None) -> tuple[Connection, Any]:
    """Start a process with transformers; its pipe, and the process."""
    context = child_context(PRELOAD)
    ours, theirs = context.Pipe()
    other = ours if context.get_start_method() == "fork" else None
    process = context.Process(target=_serve, args=(theirs, other, given, threads, log), daemon=True)
    process.start()
    theirs.close()
    return ours, process


def _serve(port: Connection, other: Connection | None, given: tuple[Any, ...], threads: int | None, log: Path | None) -> None:
    """Answer until the other side hangs up."""
    if log is not None:
        print_to(log)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # they reach the whole group; the learner decides, and closes or dies
    if other is not None:
        other.close()  # the fork's copy: while it is open the other side never seems gone
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()  # what does not fit is refused in words of our own
    if threads is not None:
        torch.set_num_threads(threads)
    answer_calls(port, InferenceEngine(*given))
    os._exit(0)  # whatever its threads are at: nobody wants it any more


def answer_calls(port: Connection, engine: Any) -> None:
    """Do what the other side of the pipe asks of an engine, until it hangs up."""
    sending = threading.Lock()

    def send(kind: str, content: Any) -> None:
        with sending:
            port.send((kind, content))

    def beat() -> None:
        """Say that jobs go on: their answers may take long."""
        before = -1
        with contextlib.suppress(OSError):  # until the other side is gone
            while True:
                time.sleep(BEAT_SECONDS)
                if (now := engine.progress) != before:
                    before = now
                    send("beat", now)

    def submit(jobs: Sequence[tuple[int, GenerationJob]]) -> None:
        version, numbers = engine.version, dict[int, int]()
        # An answer may be complete before `submit` has returned the ticket whose number it is told by.
        known = threading.Event()

        def done(ticket: Ticket) -> None:
            known.wait()
            with contextlib.suppress(OSError):
                send("answered", (numbers[id(ticket)], _answered(ticket, version)))

        tickets = engine.submit([job for _, job in jobs], done)
        numbers |= {id(ticket): number for ticket, (number, _) in zip(tickets, jobs, strict=True)}
        known.set()

    threading.Thread(target=beat, name="beat", daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        while True:
            method, arguments = port.recv()
            if method == "close":
                break
            if method == "submit":
                submit(arguments)
                continue
            given = [torch.from_numpy(a) if hasattr(a, "__array__") and not isinstance(a, Tensor) else a for a in arguments]
            try:
                answer = True, _without_tensors(getattr(engine, method)(*given))
            # What the engine refused goes on as it is; all else would need its classes on the other side.
            except _TOLD as error:
                answer = False, error
            except Exception as error:
                answer = False, EngineFailed(f"{type(error).__name__}: {error}")
            send("reply", answer)


def _answered(ticket: Ticket, version: int) -> Answered | str:
    try:
        done = ticket.result(0)
    except GenerationFailed as error:
        return str(error)
    return Answered(done.tokens, done.drawn, done.finish, tuple(ticket.versions) or (version,) * len(done.drawn))


def _without_tensors(value: Any) -> Any:
    if isinstance(value, (Scores, Answers)):
        return type(value), {name: part.numpy() if isinstance(part, Tensor) else part for name, part in vars(value).items()}
    return value


def _with_tensors(value: Any) -> Any:
    if isinstance(value, tuple) and value[0] in (Scores, Answers):
        return value[0](**{name: torch.from_numpy(p) if hasattr(p, "__array__") else p for name, p in value[1].items()})
    return value
