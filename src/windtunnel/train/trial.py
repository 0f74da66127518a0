"""A trial on one rank: a few full-size steps, timed; then one more in which each phase's memory is read.

A trial builds and holds what a run of the same recipe and layout holds, but for the data, which are
random tokens, and for checkpoints.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from windtunnel.data import BatchLoader, TokenFile, ValidationBatches
from windtunnel.model import without_attention
from windtunnel.recipe import Layout, Recipe

from .engine import Engine, Feed, Mark, Pending, StepResult
from .gpt import build_gpt_engine
from .methods import batch_shape, build_engine
from .ranks import Ranks, join_ranks

GIB = 2**30
LEAST_STEPS = 3  # timed, however slow they are
TRIAL_PROGRESS = 0.1  # of the run: the schedule's plateau


@dataclass(frozen=True)
class TrialRequest:
    """What to try.

    Attributes:
        layout: the plan's layout as JSON.
        vocab: tokens of the vocabulary (GPT).
        config: the mapping of a config.json (Hugging Face models).
        steps: timed steps. warm_up: steps before them, which compile and allocate.
        seconds: begin no further timed step after so long, once there are three.
    """

    recipe: Recipe
    layout: dict[str, Any]
    vocab: int | None
    config: dict[str, Any] | None
    steps: int
    warm_up: int
    seconds: float


class TrialSteps(Protocol):
    """What is tried: steps, one after the other.

    Attributes:
        parameters: of the whole model.
        trained: how many of them are.
    """

    parameters: int
    trained: int

    def step(self, mark: Mark | None = None) -> Pending:
        """Take one step. Marked, it is no part of a series: the next one is timed from its own beginning."""

    def validate(self) -> None:
        """Score a micro-batch, where that takes memory of its own."""

    def close(self) -> None:
        """End the engine."""


Build = Callable[["TrialRequest", Layout, Ranks, Path], TrialSteps]


def run_trial(request: TrialRequest, folder: Path, say: Callable[[str], None], build: Build | None = None) -> dict[str, Any]:
    """Build, warm up, time, read memory; called once on every rank.

    Args:
        request: what to try, and for how long.
        folder: for this rank's random tokens.
        say: told what is being done now.
        build: what is tried; None: steps of training on random tokens.

    Returns:
        JSON values; seconds and GiB. On a CPU memory is the process's resident set.

    Raises:
        UserError: the recipe and layout cannot be trained by this engine.
        torch.OutOfMemoryError and whatever else a step may raise.
    """
    layout = Layout.of_plan(request.layout)
    with join_ranks(layout.device) as ranks:
        memory = _Memory(ranks.device)
        began = time.monotonic()
        say("building the model")
        steps = (build or _build)(request, layout, ranks, folder)
        try:
            memory.synchronize()
            built = {"build_seconds": time.monotonic() - began, "built_gib": memory.now()}
            return built | _measure(request, layout, ranks, steps, memory, say)
        finally:
            steps.close()


def _build(request: TrialRequest, layout: Layout, ranks: Ranks, folder: Path) -> EngineSteps:
    recipe, config = request.recipe, request.config
    vocab = request.vocab if config is None else int((config.get("text_config") or config)["vocab_size"])
    assert vocab is not None, "a GPT's trial needs its vocabulary"
    feed = random_feed(layout, ranks, vocab, folder, recipe.seed)
    return EngineSteps(build_engine(recipe, layout, ranks, feed, config))


def compile_step(recipe: Recipe, layout: Layout, vocab: int, folder: Path) -> None:
    """Take one step of a GPT on random tokens for the kernels that are compiled for it, all but those of attention.

    Args:
        recipe: its depth is a number.
        layout: of one rank.
        vocab: tokens of its vocabulary.
        folder: for the tokens.
    """
    with join_ranks(layout.device) as ranks, without_attention():
        feed = random_feed(layout, ranks, vocab, folder, recipe.seed)
        with contextlib.closing(build_gpt_engine(recipe, layout, ranks, feed)) as engine:
            pending = engine.step(1, TRIAL_PROGRESS)
            assert pending is not None
            pending.result()


class EngineSteps:
    """Steps of an engine, one after the other."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._done = engine, 0
        self._since: Pending | None = None
        self.parameters, self.trained = engine.parameters.total, engine.parameters.trained

    def step(self, mark: Mark | None = None) -> Pending:
        """See `TrialSteps`."""
        self._done += 1
        pending = self._engine.step(self._done, TRIAL_PROGRESS, self._since, mark)
        assert pending is not None
        self._since = pending if mark is None else None
        return pending

    def validate(self) -> None:
        """Score a micro-batch; without recorded passes it finds room in what a step has freed, and nothing is done."""
        if self._engine.layout.recorded:
            self._engine.validate()
            self._since = None

    def close(self) -> None:
        """End the engine."""
        self._engine.close()


def random_feed(layout: Layout, ranks: Ranks, vocab: int, folder: Path, seed: int) -> Feed:
    """Return a run's batches over random tokens, as many as one step takes: the loss falls as they are learnt by heart.

    One micro-batch of them is the held-out data.
    """
    kind = np.dtype(np.uint16 if vocab <= 2**16 else np.uint32)
    path, count = folder / f"tokens-{ranks.rank}.bin", layout.batch_tokens + 1
    np.random.default_rng(seed).integers(0, vocab, count, dtype=kind).tofile(path)
    tokens = TokenFile(path, kind.name, count)
    shape = batch_shape(layout, ranks)
    loader = BatchLoader(tokens, accumulation=layout.accumulation, seed=seed, **shape)
    limit = min(layout.micro_batch * layout.sequence * ranks.world, count - 1)
    held_out = partial(ValidationBatches, tokens, limit=limit, **shape)
    return Feed(loader, held_out, vocab, np.ones(vocab))


def _measure(
    request: TrialRequest, layout: Layout, ranks: Ranks, steps: TrialSteps, memory: _Memory, say: Callable[[str], None]
) -> dict[str, Any]:
    began = time.monotonic()
    say("compiling and doing the first step")
    first = steps.step()
    warm = [first.result()]
    first_seconds = time.monotonic() - began
    timed = _timed(request, ranks, steps, warm, say)
    seconds = [result.seconds for result in timed]
    results = [*warm, *timed]
    # Recorded passes keep their memory, and scoring needs its own beside it: it belongs to the peak of a run.
    steps.validate()
    memory.synchronize()
    measured: dict[str, Any] = {
        "rank": ranks.rank,
        "device": torch.cuda.get_device_name(ranks.device) if ranks.device.type == "cuda" else "CPU",
        "parameters": steps.parameters,
        "trained": steps.trained,
        "first_step_seconds": first_seconds,
        "all_step_seconds": seconds,
        "step_seconds": statistics.median(seconds),
        "losses": [result.loss for result in results],
        "gradient_norms": [result.gradient_norm for result in results],
        **memory.figures(),
    }
    say("reading each phase's memory")
    # Its own step: marks wait for the device, which would spoil the timed ones.
    memory.begin()
    steps.step(memory.mark).result()
    return measured | {"phases": memory.phases, "versions": versions()}


def _timed(
    request: TrialRequest, ranks: Ranks, steps: TrialSteps, warm: list[StepResult], say: Callable[[str], None]
) -> list[StepResult]:
    """Take steps as the training loop does: a step's results are read while the next one computes.

    Steps of the warm-up, whose first one is done, are added to `warm`.
    """
    done: list[StepResult] = []
    pending: Pending | None = None
    deadline = time.monotonic() + request.seconds
    total = request.warm_up - 1 + request.steps
    for i in range(total):
        # A model whose steps take minutes is measured by three of them.
        enough = i >= request.warm_up - 1 + LEAST_STEPS and time.monotonic() > deadline
        if ranks.share(enough):  # clocks differ, and a rank that stops alone leaves the others in a collective
            break
        say(f"step {i + 2}")
        launched = steps.step()
        if pending is not None:
            done.append(pending.result())
        pending = launched
    if pending is not None:
        done.append(pending.result())
    warm += done[: request.warm_up - 1]
    return done[request.warm_up - 1 :]


class _Memory:
    """Memory of one rank, in GiB: the allocator's on a GPU, the process's resident set on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._cuda = device, device.type == "cuda"
        self._since = 0.0
        self.phases: dict[str, dict[str, float]] = {}

    def synchronize(self) -> None:
        if self._cuda:
            torch.cuda.synchronize(self._device)

    def now(self) -> float:
        """Return the GiB held at this moment."""
        if self._cuda:
            return torch.cuda.memory_allocated(self._device) / GIB
        import psutil

        return psutil.Process().memory_info().rss / GIB

    def figures(self) -> dict[str, float | None]:
        """Return the peaks since the process began, and what is held between two steps."""
        if not self._cuda:
            import resource

            # Kilobytes on Linux, bytes on macOS.
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / GIB
            return {"reserved_gib": peak, "allocated_gib": None, "static_gib": self.now(), "context_gib": None}
        free, total = torch.cuda.mem_get_info(self._device)
        reserved = torch.cuda.memory_reserved(self._device)
        retries = torch.cuda.memory_stats(self._device).get("num_alloc_retries", 0)
        return {
            "reserved_gib": torch.cuda.max_memory_reserved(self._device) / GIB,
            "allocated_gib": torch.cuda.max_memory_allocated(self._device) / GIB,
            "static_gib": self.now(),
            # All that lies on the device outside the allocator: CUDA's context, kernels, communicators' buffers.
            "context_gib": (total - free - reserved) / GIB,
            "device_gib": total / GIB,
            "allocation_retries": retries,
        }

    def begin(self) -> None:
        """Begin the step whose phases are read."""
        self._restart()

    def mark(self, phase: str) -> None:
        """End a phase; of one that comes several times a step the seconds add up and the highest peak counts."""
        self.synchronize()
        seconds, peak = time.monotonic() - self._since, self.now()
        if self._cuda:
            peak = torch.cuda.max_memory_allocated(self._device) / GIB
        entry = self.phases.setdefault(phase, {"seconds": 0.0, "peak_gib": 0.0, "end_gib": 0.0})
        entry["seconds"] += seconds
        entry["peak_gib"] = max(entry["peak_gib"], peak)
        entry["end_gib"] = self.now()
        self._restart()

    def _restart(self) -> None:
        if self._cuda:
            torch.cuda.reset_peak_memory_stats(self._device)
        self._since = time.monotonic()


def versions() -> dict[str, str]:
    """Return the versions of what decides speed and memory."""
    import platform

    found = {"python": platform.python_version(), "torch": torch.__version__, "cuda": str(torch.version.cuda)}
    if torch.cuda.is_available():
        found["cudnn"] = str(torch.backends.cudnn.version())
        found["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return found
