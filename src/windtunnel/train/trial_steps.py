"""What a trial repeats: full-size optimizer steps of a recipe on random tokens, as a run would do them."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from windtunnel.data import BatchLoader, TokenFile
from windtunnel.evaluate import validation_loss
from windtunnel.model import GPT, RecursiveGPT
from windtunnel.recipe import Recipe

from .job import Layout, build
from .optimizer import MuonAdamW, Scalars
from .ranks import Ranks
from .schedule import scalars
from .staging import Staging
from .step import Pending, StepParts
from .supervised import step_function

Mark = Callable[[str], None]
"""Called on the host at the end of each 'forward', 'backward' and 'optimizer' of a step."""

PROGRESS = 0.1  # of the run: the schedule's plateau


class TrialSteps(Protocol):
    """Steps of one rank; building one builds model, optimizer and batches."""

    parameters: int
    trained: int

    def step(self, mark: Mark | None = None) -> Pending:
        """Launch a step and return without waiting for the GPU, unless `mark` does."""
        ...

    def validate(self) -> None:
        """Score a micro-batch as a run does between steps, where that needs memory beside theirs; on every rank."""
        ...

    def close(self) -> None:
        """End the threads."""
        ...


def random_batches(layout: Layout, ranks: Ranks, vocab: int, folder: Path, seed: int) -> BatchLoader:
    """The loader of a run over random tokens, as many as one step takes: the loss falls as they are learnt by heart."""
    kind = np.dtype(np.uint16 if vocab <= 2**16 else np.uint32)
    path, count = folder / f"tokens-{ranks.rank}.bin", layout.batch_tokens + 1
    np.random.default_rng(seed).integers(0, vocab, count, dtype=kind).tofile(path)
    return BatchLoader(
        TokenFile(path, kind.name, count), sequence=layout.sequence, micro_batch=layout.micro_batch,
        accumulation=layout.accumulation, rank=ranks.rank, world=ranks.world, seed=seed, device=ranks.device,
    )  # fmt: skip


class GPTSteps:
    """Steps of a GPT; model, optimizer and loader are those of `windtunnel train`.

    Args:
        vocab: tokens of the vocabulary.
        folder: for the random tokens.
    """

    def __init__(self, recipe: Recipe, layout: Layout, ranks: Ranks, vocab: int, folder: Path) -> None:
        self._recipe, self._layout, self._ranks = recipe, layout, ranks
        self._rates, self._model, self._optimizer = build(recipe, layout, ranks, vocab)
        self._loader = random_batches(layout, ranks, vocab, folder, recipe.seed)
        self._step = step_function(recipe, recorded=layout.recorded)
        self._done = 0
        self._since: Pending | None = None
        self.parameters = self.trained = self._model.shape.parameters
        gc.collect()
        gc.freeze()  # as a run does

    def step(self, mark: Mark | None = None) -> Pending:
        """One step. Marked, it is no part of a series: the next one is timed from its own beginning.

        What is recorded goes by as a whole: a marked step is not, and no step after it.
        """
        model, optimizer = self._model, self._optimizer
        marking: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if mark is not None:
            self._step = step_function(self._recipe)
            optimizer = cast(MuonAdamW, _MarkedOptimizer(optimizer, mark))
            if isinstance(model, RecursiveGPT):
                marking = _marked_backward(mark)
            else:
                model = cast(GPT, _Marked(model, mark))
        self._done += 1
        parts = StepParts(model, optimizer, self._loader, self._ranks, cast(Staging, _NoStaging()), self._layout.batch_tokens)
        with marking:
            pending = self._step(parts, self._scalars(), self._done, self._since)
        self._since = pending if mark is None else None
        return pending

    def validate(self) -> None:
        """Without recorded passes it finds room in what a step has freed, and nothing is done."""
        if not self._layout.recorded:
            return
        layout, vocab, device = self._layout, self._model.shape.vocab, self._ranks.device
        tokens = torch.randint(vocab, (2, layout.micro_batch, layout.sequence), device=device)
        with self._optimizer.averaged():
            validation_loss(self._model, [(tokens[0], tokens[1])], torch.ones(vocab), device)
        self._since = None

    def _scalars(self) -> Scalars:
        stage = self._recipe.pretrain
        decay = self._rates.weight_decay.value
        return scalars(
            stage.schedule, momentum=stage.optimizer.momentum, weight_decay=decay, step=self._done - 1, progress=PROGRESS
        )

    def close(self) -> None:
        """End the loader's thread."""
        self._loader.close()


class _NoStaging:
    """A trial saves nothing; a run's host copies hold no memory of the GPU."""

    def before_update(self) -> None:
        """Nothing is being copied."""


@contextlib.contextmanager
def _marked_backward(mark: Mark) -> Iterator[None]:
    """Backward passes are marked, of a model that goes backward several times between its forward passes."""
    true = Tensor.backward

    def backward(loss: Tensor, *arguments: Any, **keywords: Any) -> None:
        mark("forward")
        true(loss, *arguments, **keywords)
        mark("backward")

    Tensor.backward = backward  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        Tensor.backward = true  # type: ignore[method-assign]


class _Marked:
    """A model whose forward passes are marked."""

    def __init__(self, model: GPT, mark: Mark) -> None:
        self._model, self._mark, self._again = model, mark, False

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if self._again:
            self._mark("backward")
        self._again = True
        loss = self._model(*arguments, **keywords)
        self._mark("forward")
        return loss


class _MarkedOptimizer:
    """An optimizer whose step is marked."""

    def __init__(self, optimizer: MuonAdamW, mark: Mark) -> None:
        self._optimizer, self._mark = optimizer, mark

    def step(self, now: Scalars) -> Any:
        self._mark("backward")
        square = self._optimizer.step(now)
        self._mark("optimizer")
        return square
