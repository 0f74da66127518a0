"""Metrics and bands of reinforcement learning: what is logged of each round, and what it says about the policy."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from windtunnel.recipe import GRPO, Recipe
from windtunnel.run import Finding, Judge

from .monitors import MONITORS, monitor_findings

METRICS: dict[str, str] = {
    "reward": "mean reward of a round's answers, of those that are known; also of prompts that taught nothing",
    "reward_deviation": "standard deviation of the rewards of a round",
    "reward_math": "mean that the judge of mathematics gave, before its weight",
    "reward_exact": "mean that exact match gave, before its weight",
    "reward_format": "mean that the judge of form gave, before its weight",
    "reward_code": "mean that tests of code gave, before their weight",
    "reward_kernel": "mean that the judge of kernels gave, before its weight",
    "reward_speed": "mean that the kernels' speed gave, before its weight, of answers that were timed or are wrong",
    "reward_plan": "mean reward of the plans, where plan and code have rewards of their own; `reward` is then the code's",
    "reward_function": "mean that the user's function gave, before its weight",
    "level": "newest level of prompts that the curriculum asks",
    "right": "share of answers that the first judge accepts, 0 to 1",
    "different": "share of answers that differ from the others to their prompt, 0 to 1; equal ones are judged once",
    "unknown": "share of answers of which nothing is known, 0 to 1; they are not learned from",
    "asked_again": "times that a judge which failed was asked again",
    "answer_length": "mean tokens of an answer",
    "answer_longest": "tokens of the longest answer",
    "truncated": "share of answers cut at stages.rl.answer_tokens, 0 to 1",
    "equal_rewards": "share of prompts whose answers all got the same reward, 0 to 1: they teach nothing",
    "resampled": "times that other prompts were taken in place of those",
    "learned": "answers that were learned from",
    "entropy": "of the policy, nats a token: mean of minus the log-probabilities that tokens were drawn with",
    "staleness": "updates between the weights that drew a token and those that learn from it, mean over tokens",
    "staleness_largest": "the most updates between them of any token",
    "mixed_versions": "share of answers whose tokens are by several versions of the weights, 0 to 1 (stages.rl.in_flight)",
    "too_old": "answers that were left out because their weights were older than stages.rl.overlap allows",
    "clipped": "share of tokens whose gradient the clip cut off, 0 to 1",
    "kl": "k3 estimate of the divergence from the reference policy, nats a token",
    "mismatch": "mean |log-probability by learner - by sampler| of the answers' tokens, nats",
    "mismatch_p95": "95 % of the tokens differ by less",
    "mismatch_largest": "the token that differs most",
    "mismatch_k3": "k3 estimate of KL(sampler || learner), nats a token",
    "mismatch_outside": "share of tokens whose ratio of probabilities is outside [0.9, 1.1]",
    "generation_halvings": "times in a round that memory ran out and half as many answers were written at once",
    "generating_seconds": "of a step: until all answers of the round were there and judged",
    "judging_seconds": "of those: waiting for judges after the last answer was there",
    "publish_seconds": "of a step: until a canary was scored and, where engines get files, the weights were on the disk",
    "load_seconds": "of a step: until every engine had taken them and scored the canary",
    "canary": "mean |log-probability by learner - by engine| of the canary after a sync, nats; the largest of all engines",
    "waiting_seconds": "of a step: waiting for a round that was answered ahead",
    "engine_restarts": "times that an engine was started again in a round",
    "learning_seconds": "of a step: scoring and updates, as the host sees it",
    **MONITORS,
}

BEGINNINGS = {
    "right_of_": "share of answers that the first judge accepts, 0 to 1, to prompts of the subject",
    "judge_seconds_": "seconds that all judges together took in this stage of theirs, waits for a GPU or a worker among them",
}
"""Metrics whose names end with a subject of the user's."""

STEP_METRICS: dict[str, str] = {}
"""There are no supervision steps."""

OUTSIDE = 0.05
"""Share of tokens with another probability from which sampler and learner do not compute the same model; by weights that are
some updates older, and are meant to differ, so much more with each of them."""
LARGE_MISMATCH = 0.05
DIFFERENT = 0.2
"""Nats on average from which they are different models: rounded weights, 8-bit ones too, stay far below it."""
EQUAL = 0.8
UNKNOWN = 0.02
TRUNCATED = 0.5
PATIENCE = 3
RARE = 0.05
"""Below this share of right answers, or above what is left of one, hardly a group holds both kinds."""


def judge(recipe: Recipe, vocab: int) -> Judge | None:
    """Return the judge of a recipe with reinforcement learning; None where there is none."""
    return None if recipe.rl is None else partial(findings, stage=recipe.rl)


def findings(metrics: Mapping[str, float], stage: GRPO | None = None) -> list[Finding]:
    """Judge one round's metrics; what is not among them is not judged. The advice names the stage's keys.

    Args:
        metrics: by name.
        stage: of the recipe; None: one as it is by default.
    """
    if "reward" not in metrics:
        return []
    stage = stage or GRPO(kind="rl", name="rl")
    halved = metrics.get("generation_halvings", 0.0)
    short = f"memory ran out in generation {halved:.0f} time(s): half as many answers are written at once" if halved else None
    restarts = metrics.get("engine_restarts", 0.0)
    again = f"{restarts:.0f} engine(s) died and were started again" if restarts else None
    key = f"stages.{stage.name or 'rl'}"
    cut = f"raise {key}.answer_tokens, or reward answers that end in time (kind: format)"
    judges = "why stands in `windtunnel logs RUN --which judges`; windtunnel verify selftest tries the verifiers on this machine"
    return [
        _warn("mismatch", _mismatch(metrics), PATIENCE, _agree(stage, key)),
        _warn("engine_restarts", again, 1, "why is in `windtunnel logs RUN --which engine`"),
        _warn("generation_memory", short, 1, f"it goes on, and takes longer: lower {key}.answer_tokens, or put engines on GPUs "
              f"of their own ({key}.engine)"),
        _warn(
            "equal_rewards",
            _above(metrics["equal_rewards"], EQUAL, "of the prompts get the same reward for every answer: they teach nothing"),
            PATIENCE, _tell_apart(metrics, stage, key),
        ),
        _warn("unknown_rewards", _above(metrics["unknown"], UNKNOWN, "of the answers could not be judged"), PATIENCE, judges),
        _warn("truncated", _above(metrics["truncated"], TRUNCATED, "of the answers are cut"), PATIENCE, cut),
        *monitor_findings(metrics, stage),
    ]  # fmt: skip


def _warn(band: str, message: str | None, patience: int, advice: str) -> Finding:
    # Few rounds are a whole run here: no band waits for the start to be over.
    return Finding(band, "warn", message, patience, advice=advice, early=True)


def _above(value: float, limit: float, words: str) -> str | None:
    return f"{value:.0%} {words}" if value > limit else None


def _mismatch(metrics: Mapping[str, float]) -> str | None:
    apart, outside, updates = metrics["mismatch"], metrics["mismatch_outside"], metrics.get("staleness", 0.0)
    if outside <= OUTSIDE * (1 + updates) and apart <= LARGE_MISMATCH * (1 + updates):
        return None
    between = f", with {updates:.3g} updates between them" if updates else ""
    found = f"{apart:.3f} nats on average, {outside:.1%} outside [0.9, 1.1]"
    return f"sampler and learner give tokens other probabilities: {found}{between}"


def different(metrics: Mapping[str, float], stage: GRPO) -> tuple[str, str] | None:
    """Return what is wrong, and the fix, where a round shows that sampler and learner are different models; else None.

    Where tokens on which they disagree are left out (mismatch: mask), a run may go on.
    """
    # Older weights are meant to differ: what is allowed grows with the updates between the two.
    if stage.mismatch == "mask" or metrics["mismatch"] <= DIFFERENT * (1 + metrics.get("staleness", 0.0)):
        return None
    key = f"stages.{stage.name or 'rl'}"
    return f"{_mismatch(metrics)}; from such answers nothing is learned that holds for the learner", _agree(stage, key)


def _agree(stage: GRPO, key: str) -> str:
    """Return what to try where sampler and learner compute different models."""
    # Only what the recipe does not have already.
    ways = []
    if stage.engine_weights != "bf16":
        ways.append(f"engines with weights as the learner has them (--set {key}.engine_weights=bf16)")
    if stage.overlap:
        ways.append(f"fewer rounds ahead (--set {key}.overlap={stage.overlap - 1})")
    if stage.engine != "in-turn":
        ways.append(f"one run with --set {key}.engine=in-turn, which shows whether the engine is the cause")
    if stage.mismatch != "mask":
        ways.append(f"leaving such tokens out (--set {key}.mismatch=mask)")
    return ", ".join(ways) or "windtunnel check RECIPE --only weight-sync compares the two on this machine"


def _tell_apart(metrics: Mapping[str, float], stage: GRPO, key: str) -> str:
    """Return what to change so that the answers to a prompt differ in their rewards."""
    right = metrics.get("right")
    # Equal rewards have many causes. Those that other numbers of the round give away are named first.
    if right is not None and right > 1 - RARE:
        return f"the prompts are too easy, or the judges accept everything: read RUN/rollouts; then harder prompts, or {key}.best"
    if metrics["truncated"] > TRUNCATED:
        return f"most answers are cut before they can be judged: raise {key}.answer_tokens"
    if right is not None and right < RARE:
        easier = "a curriculum" if stage.curriculum is None else "an easier lowest level"
        return (
            f"the prompts are too hard, or the judges accept nothing: read RUN/rollouts; then easier prompts ({easier}), "
            f"fine-tuning first, a reward for form beside (kind: format), or more answers ({key}.samples above {stage.samples})"
        )
    return (
        f"answers differ and rewards do not: read RUN/rollouts; then a reward with more grades, more answers ({key}.samples "
        f"above {stage.samples}), or a higher {key}.temperature"
    )
