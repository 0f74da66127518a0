"""What a round shows: rewards, lengths, how far sampler and learner are apart; summed on each rank, put together on rank 0."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from windtunnel.recipe import GRPO

from .judges import SUBJECT, Judges
from .kept_rounds import Answered
from .loss import PolicyLoss, k3
from .mismatch import measure_mismatch
from .rollouts import Sample
from .signs import monitor_metrics, sketches, sum_signs

OF = "of_"
"""Before a subject, where right answers are counted by subject."""
SPENT = "judge_seconds_"
"""Before a stage of the judges."""


@dataclass(frozen=True)
class RoundSums:
    """One rank's sums of a round.

    Attributes:
        sums: by name. most: likewise, what the largest of is taken over ranks. judged: by source, sum of rewards
            and answers; by subject, right ones and answers.
        sampler: its own metrics, the largest of all ranks is taken.
        accepted: of accepted answers, the prompt's number and a sketch of the text.
    """

    sums: dict[str, float] = field(default_factory=dict)
    most: dict[str, float] = field(default_factory=dict)
    judged: dict[str, list[float]] = field(default_factory=dict)
    sampler: dict[str, float] = field(default_factory=dict)
    accepted: list[list[int]] = field(default_factory=list)

    @classmethod
    def of(
        cls, answered: Answered, losses: Sequence[PolicyLoss], rewards: Judges, stage: GRPO, *, learning: float, version: int
    ) -> RoundSums:
        """Return those of a round; waits for the device.

        Args:
            answered: the round.
            losses: of its micro-batches, after they were learned from.
            rewards: that judged it.
            stage: it is of.
            learning: seconds of scoring and updates.
            version: of the weights that it was learned with first.
        """
        found, later = answered.found, (stage.updates - 1) / 2  # of several updates the later ones learn from older answers
        everything, learned = found.everything, list(found.samples)
        known = [sample for sample in everything if sample.reward.total is not None]
        # Equal answers to one prompt were judged once, and their judges' seconds count once.
        different = {(sample.prompt.number, sample.text): sample.reward for sample in everything}
        spent: Counter[str] = Counter()
        for reward in different.values():
            spent.update({SPENT + re.sub(r"\W+", "_", name): seconds for name, seconds in reward.seconds.items()})
        sums = {
            "answers": len(everything), "different": len(different), "known": len(known),
            "reward": math.fsum(s.reward.total or 0.0 for s in known),
            "squares": math.fsum((s.reward.total or 0.0) ** 2 for s in known),
            "right": sum(s.reward.accepted is True for s in everything), "cut": sum(s.cut for s in everything),
            "tokens": sum(len(s.tokens) for s in everything), "asked_again": sum(s.reward.asked_again for s in everything),
            "plans": sum(s.reward.plan is not None for s in everything),
            "plan": math.fsum(s.reward.plan or 0.0 for s in everything),
            "learned": sum(not math.isnan(s.advantage) for s in learned), "equal": found.equal, "ranks": 1.0,
            "stale": math.fsum(float((version - s.token_versions + later).sum()) for s in learned),
            "too_old": sum(version - s.version > stage.overlap * stage.updates for s in learned),
            "prompt_tokens": sum(len(s.prompt.ids) for s in learned), "answer_tokens": sum(len(s.tokens) for s in learned),
        } | sum_signs(found, stage) | spent  # fmt: skip
        judged, accepted = _judged(everything, rewards), sketches(found, stage)
        # Last, for it waits for the GPU, which is still learning.
        sums |= _of_tokens(losses)
        if stage.in_flight:
            sums |= {"taken": len(learned), "mixed": sum(sample.versions is not None for sample in learned)}
        most = {
            "resampled": float(found.resampled), "generating": found.seconds, "judging": found.judging, "learning": learning,
            "stalest": float(max((version - s.version for s in learned), default=0) + stage.updates - 1),
            "longest": float(max((len(s.tokens) for s in everything), default=0)), **_largest(losses),
        }  # fmt: skip
        return cls({name: float(value) for name, value in sums.items()}, most, judged, dict(answered.metrics), accepted)


def round_metrics(ranks: Sequence[RoundSums]) -> tuple[dict[str, float], float]:
    """Return a round's metrics (see `health.METRICS`) and the tokens that were learned from, prompts among them."""
    sums: Counter[str] = Counter()
    for one in ranks:
        sums.update(one.sums)
    # What a step waits for is the slowest rank: of seconds the largest counts, not the mean.
    most = {name: max(one.most.get(name, 0.0) for one in ranks) for name in ranks[0].most}
    answers, known, tokens, scored = (max(1.0, sums[name]) for name in ("answers", "known", "tokens", "scored"))
    mean = sums["reward"] / known
    found = {
        "reward": mean,
        "reward_deviation": math.sqrt(max(0.0, sums["squares"] / known - mean**2)),
        "right": sums["right"] / answers,
        # What was judged twice, and not alike, is counted as that.
        "different": sums["different"] / answers,
        "unknown": (answers - sums["known"] - sums["disagreed"]) / answers,
        "asked_again": sums["asked_again"],
        "answer_length": tokens / answers,
        "answer_longest": most["longest"],
        "truncated": sums["cut"] / answers,
        "equal_rewards": sums["equal"] / sums["ranks"],
        "resampled": most["resampled"],
        "learned": sums["learned"],
        "entropy": -sums["sampler"] / scored,
        "staleness": sums["stale"] / max(1.0, sums["answer_tokens"]),
        "staleness_largest": most["stalest"],
        "too_old": sums["too_old"],
        "mismatch": sums["mismatch"] / scored,
        "mismatch_p95": sums["mismatch_p95"] / scored,
        "mismatch_largest": most["mismatch_largest"],
        "mismatch_k3": sums["mismatch_k3"] / scored,
        "mismatch_outside": sums["mismatch_outside"] / scored,
        "generating_seconds": most["generating"],
        "judging_seconds": most["judging"],
        "learning_seconds": most["learning"],
    }
    found |= {name: seconds for name, seconds in sums.items() if name.startswith(SPENT)}
    found |= {name: max(one.sampler.get(name, 0.0) for one in ranks) for name in ranks[0].sampler}
    for name in sorted({name for one in ranks for name in one.judged}):
        total, count = (sum(one.judged.get(name, (0.0, 0.0))[i] for one in ranks) for i in (0, 1))
        if count:
            found[f"right_{name}" if name.startswith(OF) else f"reward_{name}"] = total / count
    if sums["taken"]:
        found["mixed_versions"] = sums["mixed"] / sums["taken"]
    if sums["plans"]:
        found["reward_plan"] = sums["plan"] / sums["plans"]
    if "clipped" in sums:
        found["clipped"] = sums["clipped"] / scored
    if sums["referenced"]:
        found["kl"] = sums["kl"] / scored
    found |= monitor_metrics(sums, [row for one in ranks for row in one.accepted])
    return found, sums["prompt_tokens"] + sums["answer_tokens"]


def _judged(everything: Sequence[Sample], rewards: Judges) -> dict[str, list[float]]:
    """Return sum of rewards and answers by source; where sources are for subjects, right ones and answers by subject."""
    judged: dict[str, list[float]] = {}
    for sample in everything if any(source.of for source in rewards.sources) else ():
        # A name of the user's becomes part of a metric's: letters, digits and underscores alone.
        subject = OF + re.sub(r"\W+", "_", str(sample.prompt.data.get(SUBJECT)))
        right, asked = judged.get(subject, [0.0, 0.0])
        judged[subject] = [right + (sample.reward.accepted is True), asked + 1]
    for number, source in enumerate(rewards.sources):
        values = [v for sample in everything if sample.reward.parts and (v := sample.reward.parts[number]) is not None]
        total, count = judged.get(source.name, [0.0, 0.0])
        judged[source.name] = [total + math.fsum(values), count + len(values)]
    return judged


def _of_tokens(losses: Sequence[PolicyLoss]) -> dict[str, float]:
    """Return sums over all answers' tokens that were scored; those of the mismatch's mean, p95 and so on times the tokens."""
    there = [loss.scored for loss in losses]
    sampler = torch.cat([loss.tokens.sampler[at] for loss, at in zip(losses, there, strict=True)])
    policy = torch.cat([_policy(loss)[at] for loss, at in zip(losses, there, strict=True)])
    if not sampler.numel():
        return {}
    found = measure_mismatch(policy, sampler)
    count = float(found.tokens)
    sums = {"scored": count, "sampler": float(sampler.double().sum())}
    clipped = [loss.clipped for loss in losses if loss.clipped is not None]
    sums |= {"clipped": float(torch.stack(clipped).sum())} if clipped else {}
    # Times the tokens, so that ranks with many answers weigh more; of a p95 that is an approximation.
    sums |= {"mismatch": found.mean * count, "mismatch_p95": found.p95 * count, "mismatch_k3": found.k3 * count}
    sums |= {"mismatch_outside": found.outside * count}
    if losses[0].tokens.reference is not None:
        reference = torch.cat([loss.tokens.reference[at] for loss, at in zip(losses, there, strict=True)])  # type: ignore[index]
        sums |= {"kl": float(k3(policy, reference).double().sum()), "referenced": 1.0}
    return sums


def _largest(losses: Sequence[PolicyLoss]) -> dict[str, float]:
    apart = [torch.where(loss.scored, (_policy(loss) - loss.tokens.sampler).abs(), 0.0).max() for loss in losses]
    # A probability that is not a number is as far away as can be, and must not hide the others.
    return {"mismatch_largest": float(torch.stack(apart).nan_to_num(nan=math.inf).max()) if apart else 0.0}


def _policy(loss: PolicyLoss) -> torch.Tensor:
    """Return what the policy that drew the tokens gives them: before the round's updates."""
    return loss.seen if loss.tokens.old is None else loss.tokens.old
