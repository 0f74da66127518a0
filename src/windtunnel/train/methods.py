"""How a kind of stage trains: its engine, what feeds it, and what answers held-out questions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from windtunnel.data import BatchLoader, PreparedData, ValidationBatches
from windtunnel.model import NewRows, hf_shape
from windtunnel.recipe import HuggingFaceModel, Layout, Recipe
from windtunnel.run import RunFolder, StopRequest

from .engine import Engine, Feed
from .gpt import build_gpt_engine
from .ranks import Ranks

if TYPE_CHECKING:
    from windtunnel.evaluate import Answered

Ask = Callable[[], "Answered | None"]
"""Answers held-out questions, on all ranks together; the judged answers on rank 0."""


@dataclass(frozen=True)
class Work:
    """What is to be trained, by this rank.

    Attributes:
        run: the folder, whose recipe is the stage's.
        layout: how the work is spread.
        ranks: this one and the others.
        data: prepared, the same on every rank.
        stop: says whether this process is to end.
    """

    run: RunFolder
    layout: Layout
    ranks: Ranks
    data: PreparedData
    stop: StopRequest

    @property
    def recipe(self) -> Recipe:
        """Return the stage's recipe."""
        return self.run.recipe


class Method(Protocol):
    """How a kind of stage trains: what the loop drives, and how held-out questions are answered."""

    def engine(self, work: Work) -> Engine:
        """Build the engine; all ranks call it together."""

    def ask(self, work: Work, engine: Engine) -> AbstractContextManager[Ask | None]:
        """Return what answers held-out questions between steps; it gives None where the recipe asks for none."""


class Supervised:
    """Training on targets that are there before: pretraining and fine-tuning."""

    def engine(self, work: Work) -> Engine:
        """Build the engine on windows of the corpus; see `Method`."""
        return build_engine(work.recipe, work.layout, work.ranks, text_feed(work.recipe, work.layout, work.ranks, work.data))

    def ask(self, work: Work, engine: Engine) -> AbstractContextManager[Ask | None]:
        """Return what answers held-out conversations; see `Method`."""
        if work.recipe.sft is None or work.recipe.sft.answers is None:
            return contextlib.nullcontext()
        from .held_out_answers import tuned_answers  # imports transformers

        return tuned_answers(work.recipe, engine, work.ranks, work.data, work.stop)


def build_engine(recipe: Recipe, layout: Layout, ranks: Ranks, feed: Feed, config: dict[str, Any] | None = None) -> Engine:
    """Return what trains a recipe's model. Raises UserError where nothing does.

    Args:
        recipe: of one stage.
        layout: how the work is spread.
        ranks: this one and the others.
        feed: what it is fed with.
        config: the mapping of a Hugging Face model's config.json; None: the recipe names it.
    """
    if not isinstance(recipe.model, HuggingFaceModel):
        return build_gpt_engine(recipe, layout, ranks, feed)
    from .hf import build_hf_engine  # imports transformers

    return build_hf_engine(recipe, layout, ranks, feed, config or hf_shape(recipe.model.config).raw)


def batch_shape(layout: Layout, ranks: Ranks) -> dict[str, Any]:
    """Return what every loader is told: the shape of a micro-batch, and the rank that it is for."""
    return {
        "sequence": layout.sequence, "micro_batch": layout.micro_batch,
        "rank": ranks.rank, "world": ranks.world, "device": ranks.device,
    }  # fmt: skip


def text_feed(recipe: Recipe, layout: Layout, ranks: Ranks, data: PreparedData) -> Feed:
    """Return windows of the corpus, spread over ranks."""
    shape, limit = batch_shape(layout, ranks), (recipe.sft or recipe.pretrain).validation_tokens
    loader = BatchLoader(data.train, accumulation=layout.accumulation, seed=recipe.seed, few_shapes=layout.recorded, **shape)
    validation = partial(ValidationBatches, data.validation, limit=limit, **shape)
    tokenizer = data.tokenizer
    return Feed(loader, validation, tokenizer.vocab, tokenizer.token_bytes(), NewRows.of(tokenizer))
