"""A learner's step on made-up answers, for a trial: what it takes of memory and time before anything answers or judges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.data import Prompt
from windtunnel.recipe import GRPO, Layout
from windtunnel.train import (
    TRIAL_PROGRESS,
    Mark,
    Moment,
    ObjectiveBatch,
    Pending,
    Ranks,
    TrialRequest,
    build_hf_engine,
    random_feed,
    run_trial,
)

from .batches import micro_batches
from .judges import Reward
from .learner import give, score_before
from .reference import Reference
from .rollouts import Sample


def run_learner_trial(request: TrialRequest, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure a stage of kind rl; see `windtunnel.train.run_trial`."""
    return run_trial(request, folder, say, build=LearnerSteps)


class LearnerSteps:
    """Steps of a learner on this rank, each an update of a round: the same answers every time, as long as they may be."""

    def __init__(self, request: TrialRequest, layout: Layout, ranks: Ranks, folder: Path) -> None:
        stage = request.recipe.rl
        assert stage is not None
        assert request.config is not None
        vocab = int((request.config.get("text_config") or request.config)["vocab_size"])
        feed = random_feed(layout, ranks, vocab, folder, request.recipe.seed)
        self._engine = build_hf_engine(request.recipe, layout, ranks, feed, request.config)
        job = self._engine.job
        job.network.temperature = stage.temperature
        self.parameters, self.trained = job.parameters.total, job.parameters.trained
        self._stage, self._ranks, self._layout, self._done = stage, ranks, layout, 0
        self._samples = made_up_samples(stage, layout, vocab, request.recipe.seed + ranks.rank)
        self._since: Pending | None = None
        self._reference = Reference(job) if stage.reference else None
        if self._reference is not None:
            self._reference.take()
        # As if the weights of the first step had drawn the answers.
        self._drawn = list(job.score(self._batches()))

    def step(self, mark: Mark | None = None) -> Pending:
        """Take one update, after the passes that score the answers for it; see `windtunnel.train.TrialSteps`."""
        began = Moment(self._ranks.device)
        self._done += 1
        job, batches = self._engine.job, self._batches()
        give(batches, self._drawn, "sampler")
        score_before(job, self._reference, batches, self._stage.updates)
        sums = self._engine.update(batches, self._done, TRIAL_PROGRESS, mark)
        pending = Pending(self._done, sums, began, self._since)
        self._since = pending if mark is None else None
        return pending

    def validate(self) -> None:
        """Score nothing: there are no held-out targets."""

    def close(self) -> None:
        """End the engine."""
        self._engine.close()

    def _batches(self) -> list[ObjectiveBatch]:
        layout = self._layout
        return micro_batches(
            self._samples, self._stage, sequence=layout.sequence, rows=layout.micro_batch, fixed=layout.compile,
            device=self._ranks.device, least=layout.accumulation,
        )  # fmt: skip


def made_up_samples(stage: GRPO, layout: Layout, vocab: int, seed: int) -> list[Sample]:
    """Return prompts and answers of random tokens that fill every row of an update on one rank, half with an advantage of -1."""
    random, found = np.random.default_rng(seed), list[Sample]()
    whole = stage.prompt_tokens + stage.answer_tokens
    for _ in range(layout.micro_batch * layout.accumulation):
        room = layout.sequence
        while room > 1:
            # Rows are filled to the last token: the dearest update that the recipe can bring.
            length = min(room, whole)
            prompt = min(length - 1, max(1, length * stage.prompt_tokens // whole))
            ids, tokens = np.split(random.integers(0, vocab, length, dtype=np.int64), [prompt])
            asked = Prompt(len(found), ids, "", None, {})
            one = Sample(asked, 0, tokens, np.zeros(len(tokens), np.float32), "", False, 0, Reward(0.0, (), None))
            # Both signs, so that either side of the clip is computed.
            advantage = 1.0 - 2.0 * (len(found) % 2)
            found.append(replace(one, advantage=advantage, plan_advantage=advantage))
            room -= length
    return found
