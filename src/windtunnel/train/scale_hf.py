"""A recipe's scale model of a Hugging Face model on one CPU rank, with random batches, for the checks of training and of RL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel.check import Context
from windtunnel.recipe import HuggingFaceModel, Layout, Schedule

if TYPE_CHECKING:
    from torch import Tensor, dtype

    from windtunnel.data import Batch

    from .hf import HFEngine, HFJob

ROWS, SEQUENCE = 4, 64
RATE = 1e-3
NEW_ROWS = 64
"""Of the scale model's tokens, those that stand for new ones: enough that every random batch has some."""


def small_job(context: Context, compute: dtype) -> HFJob:
    """Return the recipe's way of training its scale model, on one CPU rank, with the same random numbers every time."""
    import torch

    from windtunnel.model import NewRows, hf_shape

    from .hf import build_hf
    from .ranks import Ranks

    recipe = context.recipe
    stage = recipe.sft or recipe.rl
    assert stage is not None
    assert isinstance(recipe.model, HuggingFaceModel)
    small, new = hf_shape(str(context.small_config)), None
    if getattr(recipe.data.tokenizer, "add", []):
        own = small.vocab - NEW_ROWS
        new = NewRows(own, small.vocab, ((0, own),), ((),) * NEW_ROWS)
    job = build_hf(
        small.raw, lora=recipe.model.adapter, weights=recipe.model.weights,
        master=stage.master, states=stage.states, recompute="block" if recipe.layout.recompute == "block" else "none",
        compile=False, shard=recipe.layout.shard or "full", ranks=Ranks(0, 1, torch.device("cpu"), None),
        sequence=SEQUENCE, seed=context.seed, compute=compute, new=new,
    )  # fmt: skip
    # Building drew numbers; dropout and rounding begin from the same place whatever was built.
    torch.manual_seed(context.seed)
    return job


def random_batch(vocab: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return random tokens and the targets that follow them, each (4, 64) int64."""
    import torch

    tokens = torch.randint(0, vocab, (ROWS, SEQUENCE + 1), generator=torch.Generator().manual_seed(seed))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def vocabulary_of(job: HFJob) -> int:
    """Return how many tokens a job's model knows."""
    size: int = job.network.model.config.get_text_config().vocab_size
    return size


class _RandomBatches:
    """The batch of each step is drawn by its number alone."""

    accumulation, step_sequences, wait_seconds = 1, 1, 0.0

    def __init__(self, vocab: int, seed: int) -> None:
        self._vocab, self._seed, self.position = vocab, seed, 0

    @property
    def epochs(self) -> float:
        return 0.0

    def next_batch(self) -> Batch:
        self.position += 1
        from windtunnel.data import Batch

        return Batch(*random_batch(self._vocab, self._seed + self.position))

    def seek(self, position: int) -> None:
        self.position = position

    def close(self) -> None:
        """Close nothing: nothing runs."""


def small_engine(context: Context, compute: dtype) -> HFEngine:
    """Return an engine of the recipe's scale model, with the same random numbers every time."""
    import numpy as np

    from .engine import Feed
    from .hf import HFEngine

    job = small_job(context, compute)
    vocab = vocabulary_of(job)
    layout = Layout(1, ROWS, 1, SEQUENCE, "bf16", False, "cpu")
    feed = Feed(_RandomBatches(vocab, context.seed + 100), list, vocab, np.ones(vocab))
    return HFEngine(
        layout, job.ranks, feed, job, rate=RATE, schedule=Schedule(), seed=context.seed, weights=lambda: None
    )  # fmt: skip
