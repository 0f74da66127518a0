"""Rollouts: prompts become groups of answers with rewards and advantages, judged while others are still being written."""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from windtunnel.data import Prompt, PromptLoader
from windtunnel.generate import GenerationFailed, GenerationJob, Generator, Ticket
from windtunnel.recipe import GRPO, UserError
from windtunnel.verify import plan_ends

from .cross_check import AT_ONCE, CrossChecks
from .judges import EarlyJudging, Judges, Reward, prompt_text

FAILED = Reward(None, (), None, "no answer was generated")
WAIT_SECONDS = 0.01
PATIENCE = (5.0, 10.0, 20.0, 25.0)
"""Seconds before answers are judged anew of which nothing is known although judges have worked: a service may start again."""
CHECK = 1
"""Last part of the seed that draws which answers are judged once more."""
EPSILON = 1e-4
"""Added to a standard deviation before it divides, as in the peers."""
EQUAL = 1e-8
"""Rewards of a group that differ by no more are equal."""


class Stopped(Exception):
    """Told to stop before a round was complete; nothing has changed."""


@dataclass(frozen=True)
class Sample:
    """An answer to a prompt.

    Attributes:
        number: in its group.
        tokens: (n,) int64 as drawn, with the token that ended the answer. log_probabilities: (n,) fp32 that each was drawn with.
        cut: it was longer than it may be.
        version: of the weights that gave it, of several the oldest: updates behind them.
        reward: total None where nothing is known.
        advantage: NaN where nothing is learned from it.
        plan_tokens: of its first tokens, those before its code, where plan and code have rewards of their own.
        plan_advantage: of those tokens; NaN where nothing is learned from them.
        versions: (n,) int64, of the weights that gave each token; None: all are of `version`.
    """

    prompt: Prompt
    number: int
    tokens: Any
    log_probabilities: Any
    text: str
    cut: bool
    version: int
    reward: Reward
    advantage: float = math.nan
    plan_tokens: int = 0
    plan_advantage: float = math.nan
    versions: Any = None

    @property
    def token_versions(self) -> Any:
        """Return (n,) int64 versions of the weights that gave each token."""
        return np.full(len(self.tokens), self.version, dtype=np.int64) if self.versions is None else self.versions

    def to_json(self) -> dict[str, Any]:
        """Return what stays in the run's folder."""
        return {
            "prompt": prompt_text(self.prompt), "truth": self.prompt.answer, "answer": self.text, "reward": self.reward.total,
            "parts": self.reward.parts, "right": self.reward.accepted, "why": self.reward.message, "tokens": len(self.tokens),
            "cut": self.cut, "advantage": None if math.isnan(self.advantage) else round(self.advantage, 4),
            "version": self.version, "prompt_number": self.prompt.number, "sample": self.number,
        } | ({} if self.versions is None else {"versions": runs_of(self.versions)}) | ({} if not self.reward.check else {
            "checked": self.reward.checked, "check": self.reward.check, "right_elsewhere": self.reward.swapped,
            "fragile": self.reward.fragile,
        }) | ({} if not self.plan_tokens else {"plan_tokens": self.plan_tokens, "plan_reward": self.reward.plan})  # fmt: skip


@dataclass(frozen=True)
class Round:
    """The answers of a round on this rank.

    Attributes:
        groups: what is learned from, a prompt each.
        dropped: groups whose rewards were all equal, and that others took the place of or that are left out.
        equal: share of all groups whose rewards were equal.
        resampled: times that other prompts were taken.
        seconds: of generating and judging together; judging: of them, what came after the last answer was there.
    """

    groups: tuple[tuple[Sample, ...], ...]
    dropped: tuple[tuple[Sample, ...], ...]
    equal: float
    resampled: int
    seconds: float
    judging: float

    @property
    def samples(self) -> Iterator[Sample]:
        """Return all answers that are learned from."""
        return (sample for group in self.groups for sample in group)

    @property
    def everything(self) -> list[Sample]:
        """Return all answers, learned from or not."""
        return [sample for group in (*self.groups, *self.dropped) for sample in group]


Agree = Callable[[int], int]
"""Takes a number from every rank and gives the largest to all; all ranks call it together."""


@dataclass
class Collector:
    """Makes rounds. What is drawn depends on the seed, the round's number and the prompts alone.

    Args:
        loader: of the prompts; its position moves on.
        rewards: judges of the answers.
        agree: the largest of all ranks' numbers, so that all take as many prompts.
        stop: whether this process is to end. alive: told whenever an answer is there, or will never be; it may raise.
        say: told what is waited for.
    """

    stage: GRPO
    loader: PromptLoader
    rewards: Judges
    seed: int
    agree: Agree = lambda mine: mine
    stop: Callable[[], bool] = lambda: False
    alive: Callable[[], None] = lambda: None
    say: Callable[[str], None] = lambda text: None

    def __post_init__(self) -> None:
        self._threads = ThreadPoolExecutor(AT_ONCE, "cross-check")
        self._known = False

    def collect(self, generator: Generator, number: int, version: int) -> Round:
        """Return a round: groups with different rewards in them, as far as they can be had.

        Args:
            generator: with the policy's weights.
            number: of the round, counted from 1.
            version: of the generator's weights.

        Raises:
            UserError: nothing is known of any answer.
            Stopped: this process, or that of another rank, is to end; the loader's position has moved on.
        """
        began, stage = time.monotonic(), self.stage
        # Of every rank the same: `learners` that do not divide the prompts were refused before.
        share = stage.prompts // self.loader.world
        made: list[tuple[Sample, ...]] = []
        resampled, judging, missing = 0, 0.0, share
        while missing > 0:
            unchecked = stage.cross_check > 0 and not any(sample.reward.check for group in made for sample in group)
            groups, waited = self._answers(generator, self.loader.next_group(missing), number, resampled, version, unchecked)
            judging, made = judging + waited, [*made, *groups]
            different = sum(not _teaches_nothing(group) for group in made)
            again = stage.equal_rewards == "resample" and resampled < stage.resamples
            # All ranks take as many others as the one that lacks most: their loader's positions have to stay the same.
            missing = self.agree(share - different) if again else 0
            resampled += missing > 0
        self._require_known(made)
        equal = [_teaches_nothing(group) for group in made]
        chosen = [i for i, same in enumerate(equal) if stage.equal_rewards == "keep" or not same][:share]
        chosen = chosen or list(range(share))  # a batch there must be; this one teaches nothing
        learned = tuple(self._with_advantages(made[i]) for i in chosen)
        dropped = tuple(group for i, group in enumerate(made) if i not in chosen)
        return Round(learned, dropped, sum(equal) / len(made), resampled, time.monotonic() - began, judging)

    def _with_advantages(self, group: tuple[Sample, ...]) -> tuple[Sample, ...]:
        stage = self.stage
        found, plans = (group_advantages(rewards, stage.advantages, stage.scale) for rewards in (_rewards(group), _plans(group)))
        best = best_of(_rewards(group), stage.best)
        # NaN marks what is left out: an advantage of 0 would still count in the means.
        left = [(sample.cut and stage.mask_truncated) or i not in best for i, sample in enumerate(group)]
        return tuple(
            replace(sample, advantage=math.nan if out else code, plan_advantage=math.nan if out else plan)
            for sample, out, code, plan in zip(group, left, found, plans, strict=True)
        )

    def _answers(
        self, generator: Generator, prompts: Sequence[Prompt], number: int, attempt: int, version: int, unchecked: bool
    ) -> tuple[list[tuple[Sample, ...]], float]:
        """Answer and judge; also the seconds that judging took after the last answer.

        unchecked: no accepted answer of the round was judged once more so far, and one is to be.
        """
        stage, samples = self.stage, self.stage.samples

        def chosen(place: int) -> bool:
            # By a draw of its own, not by the clock: a round that is answered anew checks the same answers.
            draw = _draw(self.seed, number, attempt, self.loader.rank, place // samples, place % samples, CHECK)
            return draw < stage.cross_check * 2**64

        judged = CrossChecks(self.rewards, self._threads, prompts, chosen)
        places = dict[int, int]()
        with EarlyJudging(generator.text.decode_many, judged.begin) as ending:

            def judge(ticket: Ticket) -> None:
                """Begin to judge an answer as soon as it is there; on the generator's thread."""
                # An answer may be there before its place is noted: it is judged below, with those that were not begun.
                place = places.get(id(ticket))
                if place is not None:
                    ending.add(place, ticket.tokens)

            tickets = generator.submit(self._jobs(prompts, number, attempt), judge, stream=False, bounded=False)
            places |= {id(ticket): place for place, ticket in enumerate(tickets)}
            finished = [self._finish(ticket) for ticket in tickets]
            # One rank's stop ends the round of all: those that went on would wait for it in the next collective.
            if self.agree(int(self.stop())):
                raise Stopped
            ended = time.monotonic()
        texts = self._texts(generator, tickets, finished, ending.texts)
        rewards = self._patiently(
            judged.results(texts, unchecked),
            lambda: CrossChecks(self.rewards, self._threads, prompts, chosen).results(texts, unchecked),
        )
        made = [
            self._sample(prompts[place // samples], place % samples, ticket, cut, texts[place] or "", reward, generator, version)
            for place, (ticket, cut, reward) in enumerate(zip(tickets, finished, rewards, strict=True))
        ]
        groups = [tuple(made[i : i + samples]) for i in range(0, len(made), samples)]
        return groups, time.monotonic() - ended

    def _texts(
        self, generator: Generator, tickets: Sequence[Ticket], finished: Sequence[bool | None], made: dict[int, str]
    ) -> list[str | None]:
        """Return the answers' texts, without their end tokens; those not `made` yet are made now. None: there is no answer."""
        missing = [place for place, cut in enumerate(finished) if cut is not None and place not in made]
        made = made | dict(zip(missing, generator.text.decode_many([tickets[place].tokens for place in missing]), strict=True))
        return [None if cut is None else made[place] for place, cut in enumerate(finished)]

    def _jobs(self, prompts: Sequence[Prompt], number: int, attempt: int) -> list[GenerationJob]:
        """Return a job for each answer to each prompt, each with a seed of its own."""
        stage = self.stage
        return [
            GenerationJob(
                tuple(prompt.ids.tolist()), stage.answer_tokens, temperature=stage.temperature, draws=True,
                seed=_draw(self.seed, number, attempt, self.loader.rank, i, k),
            )
            for i, prompt in enumerate(prompts)
            for k in range(stage.samples)
        ]  # fmt: skip

    def _sample(
        self, prompt: Prompt, number: int, ticket: Ticket, cut: bool | None, text: str, reward: Reward | None,
        generator: Generator, version: int,
    ) -> Sample:  # fmt: skip
        """Return an answer with its reward; `cut` None: there is none."""
        tokens, drawn = zip(*ticket.drawn, strict=True) if ticket.drawn and cut is not None else ((), ())
        versions = np.array(ticket.versions if tokens else (), dtype=np.int64)
        # What counts as stale is the oldest weights that wrote any of its tokens.
        oldest = int(versions.min()) if len(versions) else version
        return Sample(
            prompt, number, np.array(tokens, dtype=np.int64), np.array(drawn, dtype=np.float32), text, bool(cut), oldest,
            reward or FAILED, versions=versions if (versions != oldest).any() else None,
            plan_tokens=plan_tokens(generator.text.decode, ticket.tokens, text) if self.stage.classes else 0,
        )  # fmt: skip

    def _patiently(self, rewards: list[Reward | None], judge: Callable[[], list[Reward | None]]) -> list[Reward | None]:
        """Judge anew while of all ranks' answers nothing is known, for a minute, where judges have worked before."""
        for seconds in (*PATIENCE, 0.0):
            if self.agree(int(any(reward is not None and reward.total is not None for reward in rewards))):
                self._known = True
                break
            if not self._known or not seconds:
                self._known = False  # not again for the others that are taken in their place
                break
            why = next((reward.message[:300] for reward in rewards if reward is not None), FAILED.message)
            self.say(f"warn: of {len(rewards)} answers nothing is known: {why}; they are judged again in {seconds:.0f} s")
            until = time.monotonic() + seconds
            while time.monotonic() < until and not self.stop():
                self.alive()
                time.sleep(WAIT_SECONDS)
            if self.agree(int(self.stop())):
                raise Stopped
            rewards = judge()
        return rewards

    def _finish(self, ticket: Ticket) -> bool | None:
        """Wait for an answer: whether it was cut; None: there is none."""
        while not ticket.over:
            # Long answers take minutes: who is told to stop may not have them.
            if self.stop():
                ticket.cancel()
                return None
            time.sleep(WAIT_SECONDS)
        # An engine that is gone for good raises here, so that a round is not waited for that never comes.
        self.alive()
        try:
            return ticket.ended() == "length"
        except GenerationFailed:
            return None

    def _require_known(self, groups: Sequence[Sequence[Sample]]) -> None:
        samples = [sample for group in groups for sample in group]
        if self.agree(int(any(sample.reward.total is not None for sample in samples))):
            return
        reasons = {sample.reward.message for sample in samples}
        raise UserError(
            f"of {len(samples)} answers nothing is known: {min(reasons)[:300]}",
            f"see that the judges work on this machine and that prompts have what they need: {self.rewards.metric}",
        )


def write_round(folder: Path, number: int, found: Round, keep: int) -> None:
    """Keep a round's answers as JSON lines, to be read by people; rounds beyond the last `keep` go."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(sample.to_json(), ensure_ascii=False) for sample in found.everything)
    (folder / f"round-{number:06d}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8", errors="replace")
    # Also those above: a run that went back writes these numbers anew, and what was answered then is not its own.
    for path in folder.glob("round-*.jsonl"):
        if not number - keep < int(path.stem.partition("-")[2]) <= number:
            path.unlink(missing_ok=True)


def runs_of(versions: Any) -> list[list[int]]:
    """Return [version, tokens] of each run of tokens that the same version of the weights gave."""
    return [[version, len(list(run))] for version, run in itertools.groupby(versions.tolist())]


def group_advantages(
    rewards: Sequence[float], baseline: Literal["group", "leave-one-out"] = "group", scale: Literal["group", "none"] = "group"
) -> list[float]:
    """Return the advantages of the answers to one prompt.

    Args:
        rewards: of each answer; NaN where nothing is known.
        baseline: the mean of all (GRPO, arXiv:2402.03300), or for each answer that of the others (RLOO, arXiv:2402.14740),
            which is n / (n - 1) times as far away.
        scale: divide by the sample standard deviation of the group, or not (Dr. GRPO, arXiv:2503.20783).

    Returns:
        One for each answer; NaN where its reward is, and everywhere if fewer than two are known: one alone has no other to be
        better than.
    """
    known = [reward for reward in rewards if not math.isnan(reward)]
    if len(known) < 2:
        return [math.nan] * len(rewards)
    # Exact sums, so that the order of the answers changes no bit.
    mean = math.fsum(known) / len(known)
    # That of the others is (n * mean - reward) / (n - 1): as far away, times n / (n - 1).
    factor = len(known) / (len(known) - 1) if baseline == "leave-one-out" else 1.0
    if scale == "group":
        factor /= math.sqrt(math.fsum((reward - mean) ** 2 for reward in known) / (len(known) - 1)) + EPSILON
    return [factor * (reward - mean) for reward in rewards]  # NaN stays NaN


def all_equal(rewards: Sequence[float]) -> bool:
    """Return whether the known rewards of a group are all the same, so that nothing can be learned from it."""
    known = [reward for reward in rewards if not math.isnan(reward)]
    return len(known) < 2 or max(known) - min(known) <= EQUAL


def best_of(rewards: Sequence[float], count: int | None) -> set[int]:
    """Return the places of the `count` highest rewards, of equal ones the first; None: of all. What is NaN is not known."""
    # Sorting is stable, so equal rewards keep their order and every machine chooses the same.
    known = [i for i, reward in enumerate(rewards) if not math.isnan(reward)]
    return set(sorted(known, key=lambda i: -rewards[i])[:count])


def plan_tokens(decode: Callable[[Sequence[int]], str], tokens: Sequence[int], text: str) -> int:
    """Return how many of an answer's first tokens stand whole before its code."""
    characters = plan_ends(text)
    # Text grows with its tokens, so a dozen decodings find the place where all prefixes would be thousands.
    return bisect.bisect_right(range(1, len(tokens) + 1), characters, key=lambda count: len(decode(tokens[:count])))


def _teaches_nothing(group: Sequence[Sample]) -> bool:
    return all_equal(_rewards(group)) and all_equal(_plans(group))


def _plans(group: Sequence[Sample]) -> list[float]:
    return [math.nan if sample.reward.plan is None else sample.reward.plan for sample in group]


def _rewards(group: Sequence[Sample]) -> list[float]:
    return [math.nan if sample.reward.total is None else sample.reward.total for sample in group]


def _draw(*parts: int) -> int:
    """Return a number below 2**64: the seed of one answer."""
    return int.from_bytes(hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest())
