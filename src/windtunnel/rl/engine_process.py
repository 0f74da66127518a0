"""An engine in a process of its own: asked through a pipe, with a limit on every answer; weights reach it by files alone."""

from __future__ import annotations

import contextlib
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from windtunnel.train import child_context

from .engine import Answers, Engine, Receipt, Scores
from .errors import BrokenSnapshot, EngineFailed, StaleWeights

LIMIT_SECONDS = 600.0
PRELOAD = f"{__package__}.engine"
_TOLD = (BrokenSnapshot, StaleWeights)
"""What an engine refuses, and goes on after."""


class EngineProcess:
    """`Engine`'s methods, in another process. Leave the `with` block to end it.

    Args:
        limit: seconds that any answer may take, with whatever must be imported before the first.
        threads: of its own for products on the CPU; None: as many as torch takes.
    """

    def __init__(
        self, dtype: torch.dtype, device: str = "cpu", *, limit: float = LIMIT_SECONDS, threads: int | None = None
    ) -> None:
        context = child_context(PRELOAD)
        self._ours, theirs = context.Pipe()
        self._limit = limit
        other = self._ours if context.get_start_method() == "fork" else None
        self._process = context.Process(target=_serve, args=(theirs, other, dtype, device, threads), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def load(self, path: Path, version: int) -> Receipt:
        """See `Engine.load`. The receipt's version is that which was asked for, or this raises."""
        receipt: Receipt = self._ask("load", path, version)
        if receipt.version != version:
            raise StaleWeights(f"asked to load version {version} of the weights, the engine has version {receipt.version}")
        return receipt

    def score(self, tokens: Tensor) -> Scores:
        """See `Engine.score`."""
        scores: Scores = self._ask("score", tokens)
        return scores

    def generate(self, prompts: Tensor, new_tokens: int, seed: int) -> Answers:
        """See `Engine.generate`."""
        answers: Answers = self._ask("generate", prompts, new_tokens, seed)
        return answers

    def save(self, file: Path) -> int:
        """See `Engine.save`."""
        version: int = self._ask("save", file)
        return version

    def close(self) -> None:
        """End the process."""
        self._ours.close()
        self._process.join(timeout=1.0)  # it ends by itself when the pipe is closed, unless it is at work
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Return the engine's answer; raise EngineFailed, or what the engine refused with."""
        try:
            # Tensors as numpy: torch's own way passes handles that need a server of their own.
            self._ours.send((method, [a.numpy() if isinstance(a, Tensor) else a for a in arguments]))
            if not self._ours.poll(self._limit):
                self._process.kill()
                raise EngineFailed(f"the engine did not answer {method!r} within {self._limit:.4g} s and was ended")
            fine, value = self._ours.recv()
        except (EOFError, OSError) as error:
            self._process.join(timeout=1.0)
            code = self._process.exitcode
            raise EngineFailed(f"the engine's process ended with exit code {code} when asked to {method}") from error
        if not fine:
            raise value
        return _with_tensors(value)


def _serve(port: Connection, other: Connection | None, dtype: torch.dtype, device: str, threads: int | None) -> None:
    """Answer until the other side hangs up."""
    if other is not None:
        other.close()  # the fork's copy: while it is open the other side never seems gone
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()  # what does not fit is refused in words of our own
    if threads is not None:
        torch.set_num_threads(threads)
    engine = Engine(dtype, device)
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            method, arguments = port.recv()
            given = [torch.from_numpy(a) if hasattr(a, "__array__") and not isinstance(a, Tensor) else a for a in arguments]
            try:
                answer = True, _without_tensors(getattr(engine, method)(*given))
            except _TOLD as error:
                answer = False, error
            except Exception as error:
                answer = False, EngineFailed(f"{type(error).__name__}: {error}")
            port.send(answer)


def _without_tensors(value: Any) -> Any:
    if isinstance(value, (Scores, Answers)):
        return type(value), {name: part.numpy() if isinstance(part, Tensor) else part for name, part in vars(value).items()}
    return value


def _with_tensors(value: Any) -> Any:
    if isinstance(value, tuple) and value[0] in (Scores, Answers):
        return value[0](**{name: torch.from_numpy(p) if hasattr(p, "__array__") else p for name, p in value[1].items()})
    return value
