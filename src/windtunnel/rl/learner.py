"""The engine of a stage of kind rl: a step is a round of rollouts, and the updates of the policy that follow from it."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from windtunnel.data import Batch, PromptLoader
from windtunnel.generate import Generator
from windtunnel.recipe import GRPO
from windtunnel.train import (
    EngineState,
    HFEngine,
    HFJob,
    Mark,
    Moment,
    ObjectiveBatch,
    Pending,
    Ranks,
    nothing,
)

from .batches import micro_batches
from .cross_check import write_disagreements
from .curriculum import Levels
from .drift import Drift
from .errors import DifferentSampler
from .health import different
from .judges import Judges
from .kept_rounds import Answered
from .loss import PolicyLoss, answer_means
from .metrics import RoundSums, round_metrics
from .reference import Reference
from .rollouts import Round, Sample, Stopped, write_round
from .rounds import Rounds, largest_of

CURRICULUM, DRIFT = "curriculum", "drift"


class PromptBatches:
    """A prompt loader where engines have batches: only its position counts. See `windtunnel.data.Batches`."""

    accumulation, wait_seconds = 1, 0.0

    def __init__(self, loader: PromptLoader) -> None:
        self.loader = loader

    @property
    def position(self) -> int:
        """Return the prompts consumed, over all ranks."""
        return self.loader.position

    @position.setter
    def position(self, position: int) -> None:
        self.loader.position = position

    @property
    def epochs(self) -> float:
        """Return the epochs consumed."""
        return self.loader.epochs

    @property
    def step_sequences(self) -> int:
        """Return the prompts of a round without others in their place."""
        return self.loader.prompts

    def next_batch(self) -> Batch:
        """Refuse: batches are made of rollouts, and nobody calls this."""
        raise NotImplementedError

    def seek(self, position: int) -> None:
        """Go to a position."""
        self.loader.seek(position)

    def close(self) -> None:
        """Close nothing: nothing runs."""


class Learner:
    """Steps of reinforcement learning on one kind of rank: each generates, judges and learns; see `windtunnel.train.Engine`.

    Args:
        inner: trains the policy; its batches are of prompts.
        rewards: judges of the answers.
        rounds: gives the rounds to learn from.
        rollouts: folder of the rounds' answers, of which rank 0 keeps its own.

    Attributes:
        drift: on rank 0, what rewards did over the last rounds.
    """

    def __init__(self, inner: HFEngine, stage: GRPO, ranks: Ranks, rewards: Judges, rounds: Rounds, *, rollouts: Path) -> None:
        self.inner, self.rewards = inner, rewards
        self.layout, self.feed, self.schedule, self.parameters = inner.layout, inner.feed, inner.schedule, inner.parameters
        self.before_update: Callable[[], None] = nothing
        self._stage, self._ranks, self._rollouts = stage, ranks, rollouts
        self._rounds, self._largest = rounds, largest_of(ranks)
        self._reference = Reference(inner.job) if stage.reference else None
        prompts = inner.feed.batches
        assert isinstance(prompts, PromptBatches)
        self._levels = None if stage.curriculum is None else Levels(stage.curriculum, prompts.loader, stage.name or "rl")
        self.drift, self._alike = Drift(stage), False
        # Probabilities are compared at the temperature that answers are drawn at, or every token would seem off-policy.
        inner.job.network.temperature = stage.temperature

    def step(self, step: int, progress: float, since: Pending | None = None, mark: Mark | None = None) -> Pending | None:
        """Take a round and learn from it; see `Engine.step`. None: told to stop before anything had changed."""
        began = Moment(self._ranks.device)
        # Before a round is asked for: the first update would make it another policy.
        self._begin_reference()
        try:
            answered = self._rounds.take(step, self.feed.batches.position)
        except Stopped:
            return None
        # Where the round ended, not where it was planned to: prompts taken in others' place are used up too.
        self.feed.batches.seek(answered.ends)
        found = self._fresh(answered.found)
        learning_began = time.monotonic()
        self._ranks.heartbeat.beat("learning")  # of its own length: on a CPU many times that of an answer
        # Scored all at once before the first update, which changes what the policy gives.
        parts = [self._batches(samples) for samples in self._parts(found)]
        score_before(self.inner.job, self._reference, [batch for part in parts for batch in part], updates=len(parts))
        sums = []
        for part, batches in enumerate(parts):
            # The loop's, which it gave to this engine: the update waits there for a checkpoint that is being copied.
            self.inner.before_update = self.before_update
            self._ranks.heartbeat.beat("learning")
            if part and self._stage.loss == "gspo":
                self._follow(batches)
            sums.append(self.inner.update(batches, step, progress, mark, part))
        learning_seconds = time.monotonic() - learning_began
        # The updates are launched, and a GPU is at them: what is the host's alone is done meanwhile.
        write_disagreements(self._rollouts, step, self._ranks.rank, found)
        if self._ranks.first and self._stage.keep_rollouts:
            write_round(self._rollouts, step, found, self._stage.keep_rollouts)
        metrics, tokens = self._measured(replace(answered, found=found), parts, learning_seconds)
        self._require_alike(metrics)
        metrics |= self._go_up(found)
        metrics |= self.drift.note(metrics) if self._ranks.first else {}
        return Pending(step, _together(sums), began, since, tokens=tokens, more=metrics)

    def generator(self) -> contextlib.AbstractContextManager[Generator]:
        """Yield the policy as it is, as what answers rounds; see `Rounds.generator`."""
        return self._rounds.generator()

    def validate(self) -> None:
        """Do nothing: held-out prompts are answered instead of targets scored."""

    def state_dict(self) -> EngineState:
        """Return the policy's state, with the reference if there is one."""
        self._begin_reference()
        state = self.inner.state_dict()
        reference = {} if self._reference is None else self._reference.states()
        levels = {} if self._levels is None else {CURRICULUM: self._levels.state()}
        return EngineState(
            {**state.tensors, **reference}, {**state.facts, **levels, DRIFT: self.drift.state(), **self._rounds.facts()}
        )

    def load_state_dict(self, state: EngineState) -> None:
        """Take over a state; the reference's tensors have been filled where they lie."""
        self.inner.load_state_dict(state)
        if self._levels is not None:
            self._levels.load(state.facts.get(CURRICULUM))
        self.drift.load(state.facts.get(DRIFT))
        self._rounds.forget(self._made, state.facts)

    def start_over(self, position: int) -> None:
        """Return to the weights of step 0, but with the prompts from `position` on."""
        self.inner.start_over(position)
        if self._levels is not None:
            self._levels.load(None)
        self.drift.load(None)
        self._rounds.forget(0, None)

    def export(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """See `Engine.export`."""
        return self.inner.export(dtype)

    def close(self) -> None:
        """End judges and engines."""
        self._rounds.close()
        self.rewards.close()
        self.inner.close()

    def _begin_reference(self) -> None:
        """Have the reference be the policy until the first update."""
        if self._reference is not None and not self.inner.job.optimizer.steps:
            self._reference.take()

    def _require_alike(self, metrics: Mapping[str, float]) -> None:
        """Raise DifferentSampler where the first round of a session shows that sampler and learner are different models.

        All ranks call it together; `metrics` are on rank 0.
        """
        if self._alike:
            return
        # Asked once a session: a sampler that is another model shows in the first round.
        self._alike = True
        # Rank 0 alone has the metrics of all, and every rank has to end with it.
        wrong = self._ranks.share(different(metrics, self._stage) if metrics else None)
        if wrong is not None:
            raise DifferentSampler(*wrong)

    @property
    def _made(self) -> int:
        """Return the rounds that the weights have behind them."""
        return self.inner.job.optimizer.steps // self._stage.updates

    def _fresh(self, found: Round) -> Round:
        """Return a round in which nothing is learned from answers by weights that are older than `overlap` allows."""
        # By the schedule none is older; were one, learning from it would go unseen.
        oldest = self.inner.job.optimizer.steps - self._stage.overlap * self._stage.updates
        groups = tuple(
            tuple(s if s.version >= oldest else replace(s, advantage=math.nan, plan_advantage=math.nan) for s in group)
            for group in found.groups
        )
        return replace(found, groups=groups)

    def _go_up(self, found: Round) -> dict[str, float]:
        """Let the curriculum take in a round, together with the other ranks; return what it shows."""
        if self._levels is None:
            return {}
        level, mine = self._levels.level, self._levels.sums(found)
        # Every rank needs the sums: the level must be the same on all of them.
        every = [mine] if self._ranks.world == 1 else self._ranks.share(self._ranks.gather(mine))
        self._levels.note(every)
        return {"level": level}

    def _parts(self, found: Round) -> list[list[Sample]]:
        """Return the samples of each update: groups stay whole."""
        updates = self._stage.updates
        # By the number of prompts that was asked for: ranks that lack some have as many updates as the others.
        size = -(-self._stage.prompts // self._ranks.world // updates)
        groups = [found.groups[i * size : (i + 1) * size] for i in range(updates)]
        return [[sample for group in part for sample in group] for part in groups]

    def _batches(self, samples: Sequence[Sample]) -> list[ObjectiveBatch]:
        layout = self.layout
        given: dict[str, Any] = {
            "sequence": layout.sequence, "rows": layout.micro_batch, "fixed": layout.compile, "device": self._ranks.device,
        }  # fmt: skip
        made = micro_batches(samples, self._stage, **given)
        # Every micro-batch has collectives: ranks with fewer rows add empty ones, or the others would wait for them.
        most = self._largest(len(made))
        return made if most == len(made) else micro_batches(samples, self._stage, **given, least=most)

    def _follow(self, batches: Sequence[ObjectiveBatch]) -> None:
        """Give the losses how far each answer's probability has moved since the round's first update."""
        for batch, now in zip(batches, self.inner.job.score(batches), strict=True):
            loss = loss_of(batch)
            assert loss.tokens.old is not None
            loss.tokens = replace(loss.tokens, moved=answer_means(now.reshape(-1) - loss.tokens.old, loss.owner))

    def _measured(
        self, answered: Answered, parts: Sequence[Sequence[ObjectiveBatch]], seconds: float
    ) -> tuple[dict[str, float], float | None]:
        """Return the metrics of a round over all ranks, and its tokens; on rank 0."""
        losses = [loss_of(batch) for part in parts for batch in part]
        version = self.inner.job.optimizer.steps - self._stage.updates  # with which the round began
        mine = RoundSums.of(answered, losses, self.rewards, self._stage, learning=seconds, version=version)
        every = self._ranks.gather(asdict(mine))
        return round_metrics([RoundSums(**one) for one in every]) if every else ({}, None)


def loss_of(batch: ObjectiveBatch) -> PolicyLoss:
    """Return the loss that `micro_batches` gave a batch."""
    assert isinstance(batch.objective, PolicyLoss)
    return batch.objective


def score_before(job: HFJob, reference: Reference | None, batches: Sequence[ObjectiveBatch], updates: int) -> None:
    """Give losses what they compare with: the reference's log-probabilities, and the policy's before several updates."""
    if reference is not None:
        with reference.in_place():
            give(batches, job.score(batches), "reference")
    # With a single update the policy is still what it was: the loss takes what it gives now for `old`.
    if updates > 1:
        give(batches, job.score(batches), "old")


def give(batches: Sequence[ObjectiveBatch], scores: Iterable[Tensor], name: str) -> None:
    """Give losses the log-probabilities of their tokens by `reference`, `old` or `sampler`."""
    for batch, found in zip(batches, scores, strict=True):
        loss = loss_of(batch)
        loss.tokens = replace(loss.tokens, **{name: found.reshape(-1)})


def _together(sums: Sequence[Tensor]) -> Tensor:
    """Return the sums of several updates as those of one: mean loss, root mean square of the norms, all targets."""
    each = torch.stack(list(sums))
    loss = torch.where(each[:, 1] > 0, each[:, 0] / each[:, 1].clamp(min=1e-30), 0.0).mean()
    return torch.stack([loss, torch.ones_like(loss), each[:, 2].mean(), each[:, 3].sum()])
