"""How a stage of kind rl trains: its engine and its held-out prompts, for the loop that trains every stage."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.actors import joined
from windtunnel.checkpoint import CheckpointStore
from windtunnel.data import PreparedData, PromptFile, PromptLoader, end_of_answer, template_of
from windtunnel.evaluate import Answered, Completion, Question, Questions, complete_by, greedy_jobs, group_of, spread
from windtunnel.generate import WholeText
from windtunnel.model import NewRows, hf_shape
from windtunnel.recipe import GRPO, HuggingFaceModel, PromptCorpus, Recipe, UserError
from windtunnel.train import Ask, ByCopy, Engine, Feed, HeldOutAnswers, HFEngine, Ranks, Work, Writer, build_hf_engine, train

from .curriculum import prompt_levels
from .drift import Drift
from .engine_share import engines_of
from .in_turn import InTurnSampler
from .judges import Judges, PromptQuestion, as_text, prompt_text
from .judges_process import ProcessRewards
from .kept_rounds import KeptRounds
from .learner import Learner, PromptBatches
from .placed_rewards import PlacedRewards, judges_log
from .rewards import Rewards
from .rollouts import Collector, Stopped
from .rounds import Rounds, RoundsAhead, SynchronousRounds, largest_of
from .sampler import EngineSampler

log = logging.getLogger(__name__)

QUESTION_SEED = 107
ROLLOUTS, WEIGHTS, AHEAD = "rollouts", "weights", "ahead"


def train_policy(folder: Path, **more: Any) -> int:
    """Train a run of a stage of kind rl; see `windtunnel.train.train`."""
    return train(folder, **more, method=Reinforcement())


class Reinforcement:
    """See `windtunnel.train.Method`."""

    def engine(self, work: Work) -> Learner:
        """Build policy, judges and what feeds them."""
        recipe, ranks = work.recipe, work.ranks
        stage, model, data = recipe.rl, recipe.model, work.data
        assert isinstance(stage, GRPO)
        assert isinstance(model, HuggingFaceModel)
        prompts = _prompts(data, stage, "train")
        if stage.curriculum is not None:
            prompt_levels(prompts, stage.curriculum.key, stage.name or "rl")  # refused before judges and engines are started
        loader = PromptLoader(prompts, prompts=stage.prompts, seed=recipe.seed, rank=ranks.rank, world=ranks.world)
        own = data.tokenizer
        feed = Feed(PromptBatches(loader), lambda: (), own.vocab, own.token_bytes(), NewRows.of(own))
        with contextlib.ExitStack() as stack:
            rewards = stack.enter_context(_judges(stage, ranks, work.run.path))
            inner = stack.enter_context(
                contextlib.closing(build_hf_engine(recipe, work.layout, ranks, feed, hf_shape(model.config).raw))
            )
            rounds = stack.enter_context(contextlib.closing(_rounds(work, inner, stage, rewards, loader)))
            learner = Learner(inner, stage, ranks, rewards, rounds, rollouts=work.run.path / ROLLOUTS)
            # Built: from here on the learner closes all of them. Had it failed, the stack would have.
            stack.pop_all()
        return learner

    @contextlib.contextmanager
    def ask(self, work: Work, engine: Engine) -> Iterator[Ask | None]:
        """Yield what answers held-out prompts between steps."""
        stage = work.recipe.rl
        assert isinstance(engine, Learner)
        assert stage is not None
        if stage.answers is None:
            yield None
            return
        questions = held_out_prompts(work.recipe, work.data, stage.answers.prompts)
        tokens = stage.answers.tokens or stage.answer_tokens
        # Rank 0 alone judges: one score decides for all ranks.
        judge = _HeldOutJudges(engine.rewards, engine.drift) if work.ranks.first else None

        def stop() -> bool:
            return work.stop.requested is not None

        write = writer_of(stage, work, engine, questions, tokens, stop)
        yield HeldOutAnswers(write, work.ranks, questions, judge, work.stop)


def writer_of(stage: GRPO, work: Work, learner: Learner, questions: Questions, tokens: int, stop: Callable[[], bool]) -> Writer:
    """Return what writes held-out answers: engines where there are some, else a copy of the learner's weights."""
    if stage.engine != "in-turn":
        return ByEngines(learner, tokens, stop)
    return ByCopy(learner.inner, work.ranks, work.data.tokenizer, questions.ends, tokens, stop)


@dataclass(frozen=True)
class ByEngines:
    """Answers by the engines that answer rounds, so that no learner needs a second copy of the weights.

    Args:
        learner: whose weights the engines take first.
        tokens: most of an answer.
        stop: asked every now and then.
    """

    learner: Learner
    tokens: int
    stop: Callable[[], bool]

    def __call__(self, questions: Sequence[Question]) -> list[Completion] | None:
        """See `windtunnel.train.Writer`."""
        try:
            with self.learner.generator() as generator:
                return complete_by(generator, greedy_jobs(questions, self.tokens), self.stop)
        except Stopped:  # all ranks are
            return None


@dataclass
class _HeldOutJudges:
    """Judges that must know something of the first held-out answers, before a round is made for them."""

    rewards: Judges
    drift: Drift
    known: bool = False

    def judge(self, questions: Sequence[Question], said: Sequence[Completion], too_long: int = 0) -> Answered:
        """See `windtunnel.evaluate.Judging`. Raises UserError."""
        found = self.rewards.judge(questions, said, too_long)
        # Once is enough: later on a judge that fails for a while only leaves answers out.
        self.known = self.known or found.n > 0 or not found.answers
        if not self.known:
            raise UserError(
                f"of {len(found.answers)} held-out answers nothing is known: {found.answers[0].message[:300]}",
                f"see that the judges work on this machine and that prompts have what they need: {self.rewards.metric}",
            )
        self.drift.held_out(found.share, found.n)
        return found


def _judges(stage: GRPO, ranks: Ranks, run: Path) -> Judges:
    """Return the judges: of the cluster that this process runs on, or of this machine, those of kernels apart."""
    found = joined()
    if found is not None and found.judges:
        return PlacedRewards(found, stage, ranks.rank)
    # Every rank has judges, which share the machine's cores.
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    kind = ProcessRewards if any(source.kind == "kernel" for source in stage.sources) else Rewards
    return kind(stage, judges_log(run, ranks.rank), gpu=ranks.device.index or 0, processes=here)


def _rounds(work: Work, inner: HFEngine, stage: GRPO, rewards: Judges, loader: PromptLoader) -> Rounds:
    """Return what gives the rounds to learn from. Raises UserError where engines cannot be shared out."""
    text, ranks = WholeText(work.data.tokenizer, answer_ends(work.recipe, work.data)), work.ranks
    sampler = InTurnSampler(inner, stage, ranks, text) if stage.engine == "in-turn" else _engines(work, inner, stage, text)

    def alive() -> None:
        ranks.heartbeat.beat("generating")
        sampler.require_well()

    rewards.waiting = alive
    collector = Collector(
        stage, loader, rewards, work.recipe.seed, agree=largest_of(ranks, apart=stage.overlap > 0),
        stop=lambda: work.stop.requested is not None, alive=alive, say=log.warning,
    )  # fmt: skip
    if not stage.overlap:
        return SynchronousRounds(sampler, collector, stage.updates)
    assert isinstance(sampler, EngineSampler)
    # Rounds are kept as long as a checkpoint is that goes on with them: it is asked which there are.
    store = CheckpointStore(work.run.checkpoints_dir)
    kept = KeptRounds(
        work.run.path / ROLLOUTS / AHEAD, ranks.rank, ranks.world, loader.file,
        lambda: [checkpoint.step for checkpoint in store.all()], stage.overlap,
    )  # fmt: skip
    return RoundsAhead(
        stage.overlap, stage.updates, sampler, collector, kept, largest_of(ranks), alive, log.warning, in_flight=stage.in_flight
    )  # fmt: skip


def _engines(work: Work, inner: HFEngine, stage: GRPO, text: WholeText) -> EngineSampler:
    share = engines_of(stage, work.run.manifest["plan"], work.ranks.world)
    return EngineSampler(inner, stage, work.ranks, text, share, work.run.path / WEIGHTS, say=log.warning)


def answer_ends(recipe: Recipe, data: PreparedData) -> frozenset[int]:
    """Return the tokens that end an answer: the tokenizer's own, and the chat template's."""
    tokenizer = data.tokenizer
    return frozenset({tokenizer.eos, end_of_answer(tokenizer, template_of(recipe, tokenizer))})


def held_out_prompts(recipe: Recipe, data: PreparedData, most: int, *, from_end: bool = False) -> Questions:
    """Return up to `most` different held-out prompts, the same ones for the recipe's seed; kernel tasks of all kinds that it can.

    Args:
        recipe: of the stage.
        data: its prompts.
        most: prompts at most.
        from_end: take them from the other end of the order: others than without, as far as there are enough.

    Raises:
        UserError: none is short enough.
    """
    stage = recipe.rl
    assert stage is not None
    file = _prompts(data, stage, "validation")
    # A seed of its own, so that no other order of the recipe is the same as that of held-out prompts.
    key = np.array([recipe.seed + QUESTION_SEED, 0], dtype=np.uint64)
    # Sorted random numbers, not a shuffle: the order of the same prompts is the same in every version of NumPy.
    order = np.argsort(np.random.Philox(key=key).random_raw(file.samples), kind="stable")
    turns = [int(number) for number in (order[::-1] if from_end else order)]
    groups: list[str | None] = [None] * file.samples
    if isinstance(recipe.data.corpus, PromptCorpus) and recipe.data.corpus.kernels is not None:
        groups = [group_of(file.prompt(number).data) for number in range(file.samples)]
    found: dict[tuple[int, ...], PromptQuestion] = {}
    for number in spread(turns, groups):
        prompt = file.prompt(number)
        if len(prompt.ids) <= stage.prompt_tokens:
            ids = tuple(prompt.ids.tolist())
            # Asked once: of prompts that are the same the answer would only be counted twice.
            truth = as_text(prompt.answer) or ""
            found.setdefault(ids, PromptQuestion(ids, prompt_text(prompt), truth, group=groups[number], source=prompt))
        if len(found) == most:
            break
    if not found:
        raise UserError(
            f"stages.{stage.name}.answers: of {file.samples:,} held-out prompts none has at most {stage.prompt_tokens} tokens",
            f"raise stages.{stage.name}.prompt_tokens, or --set stages.{stage.name}.answers=null",
        )
    return Questions(tuple(found.values()), answer_ends(recipe, data))


def _prompts(data: PreparedData, stage: GRPO, split: str) -> PromptFile:
    """Return the prompts of a split, those that are too long refused."""
    file = getattr(data, split)
    if not isinstance(file, PromptFile):
        raise UserError(
            f"stages.{stage.name} asks prompts, and data.corpus.kind is {data.corpus}",
            f"give the stage prompts: stages.{stage.name}.set: {{data.corpus: {{kind: prompts, files: [...]}}}}",
        )
    lengths = np.diff(file.starts)
    # Held-out ones that are too long are passed over instead: they cost a question, not the run.
    if split == "train" and int(lengths.max()) > stage.prompt_tokens:
        raise UserError(
            f"{int((lengths > stage.prompt_tokens).sum()):,} of {file.samples:,} prompts are longer than "
            f"stages.{stage.name}.prompt_tokens={stage.prompt_tokens}, the longest has {int(lengths.max()):,} tokens",
            f"leave them out: --set data.corpus.prompt_tokens={stage.prompt_tokens}, or raise stages.{stage.name}.prompt_tokens",
        )
    return replace(file)
