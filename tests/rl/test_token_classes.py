"""Plan and code of an answer: classes of tokens with rewards, advantages and weights of their own (TritonRL)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import new_run, series

from windtunnel.data import Prompt, PromptFile
from windtunnel.recipe import GRPO, RewardSource
from windtunnel.rl import Reward, Sample, combine_verdicts, group_advantages, micro_batches, train_policy
from windtunnel.rl.kept_rounds import Answered, KeptRounds
from windtunnel.rl.rollouts import Round, plan_tokens
from windtunnel.verify import Verdict, accept, broken, plan_ends, refuse, speed_reward

SOURCES = [
    RewardSource(kind="kernel", key="task", tokens="code"),
    RewardSource(kind="kernel", key="task", speed=True, tokens="plan"),
]
ANSWER = "Plan: a row a program.\n\n```python\nclass ModelNew:\n    pass\n```"


def stage(**more: Any) -> GRPO:
    return GRPO(name="rl", rewards=SOURCES, mismatch="ignore", scale="none", **more)


def timed(ratio: float) -> Verdict:
    return accept("timing", "right", evidence={"gpu": {"speedup": {"eager": ratio, "compiled": 0.9}}})


def sample(length: int, plan: int, code_advantage: float, plan_advantage: float) -> Sample:
    prompt = Prompt(0, np.arange(3), "p", None, {})
    tokens = np.arange(length) + 5
    reward = Reward(0.0, (), True)
    return Sample(
        prompt, 0, tokens, np.full(length, -1.0, np.float32), "", False, 0, reward, code_advantage, plan, plan_advantage
    )


def whole_loss(samples: list[Sample], asked: GRPO) -> float:
    """The loss of an update whose policy gives every token the probability that it was drawn with: no ratio leaves 1."""
    batches = micro_batches(samples, asked, sequence=32, rows=1, fixed=False, device=torch.device("cpu"))
    total = share = 0.0
    for batch in batches:
        loss: Any = batch.objective
        places = torch.arange(len(loss.owner))
        total += float(loss(torch.full((len(places),), -1.0), places)[0].sum())
        share += loss.share
    return total / share


def test_the_plan_is_what_stands_before_the_code():
    assert ANSWER[: plan_ends(ANSWER)] == "Plan: a row a program.\n\n"
    assert plan_ends("class ModelNew:\n    pass") == 0
    shown = f"An example:\n```python\nx = 1\n```\nNow the answer:\n{ANSWER[ANSWER.index('```') :]}\n```python\nModelNew()\n```"
    assert shown[: plan_ends(shown)].endswith("Now the answer:\n")


@pytest.mark.parametrize("size", [1, 3, 7])
def test_a_token_that_reaches_into_the_code_is_the_codes(size: int):
    pieces = [ANSWER[i : i + size] for i in range(0, len(ANSWER), size)]
    count = plan_tokens(lambda ids: "".join(pieces[i] for i in ids), range(len(pieces)), ANSWER)
    assert len("".join(pieces[:count])) <= plan_ends(ANSWER) < len("".join(pieces[: count + 1]))


@pytest.mark.parametrize(
    ("verdict", "code", "plan"),
    [
        (timed(1.5), 1.0, 1.5),
        (timed(3.0), 1.0, 2.0),
        (timed(0.4), 1.0, 0.4),
        (refuse("tiny", "wrong-values", "wrong"), 0.0, 0.0),
        (accept("tiny", "right, as far as a CPU can tell"), 1.0, None),
        (broken("tiny", "no worker"), None, None),
    ],
    ids=["faster", "clipped", "slower", "wrong", "untimed", "unknown"],
)
def test_rewards_of_code_and_plan(verdict: Verdict, code: float | None, plan: float | None):
    assert speed_reward(verdict) == plan
    found = combine_verdicts(stage(), [verdict, verdict])
    assert (found.total, found.plan, found.parts) == (code, plan, (code, plan))


def test_what_is_for_all_tokens_counts_for_both():
    asked = GRPO(name="rl", rewards=[*SOURCES, RewardSource(kind="format", task={"tags": ["think"]}, weight=-0.5)])
    found = combine_verdicts(asked, [timed(1.5), timed(1.5), accept("format", "has it")])
    assert (found.total, found.plan) == (0.5, 1.0)


def test_the_loss_is_that_by_hand():
    """Two answers of 4 and 3 tokens, of which 2 and 1 are plan; code worth 1 and 0, plans worth 2 and 0."""
    code, plan = group_advantages([1.0, 0.0], "group", "none"), group_advantages([2.0, 0.0], "group", "none")
    assert (code, plan) == ([0.5, -0.5], [1.0, -1.0])
    samples = [sample(4, 2, code[0], plan[0]), sample(3, 1, code[1], plan[1])]
    by_hand = -(2 * 0.1 * 1.0 + 2 * 0.5 + 1 * 0.1 * -1.0 + 2 * -0.5)
    assert whole_loss(samples, stage(loss="dapo")) == pytest.approx(by_hand / 7, abs=1e-7)
    by_answer = -((2 * 0.1 * 1.0 + 2 * 0.5) / 4 + (1 * 0.1 * -1.0 + 2 * -0.5) / 3)
    assert whole_loss(samples, stage(loss="grpo")) == pytest.approx(by_answer / 2, abs=1e-7)
    heavier = -(2 * 0.4 * 1.0 + 2 * 0.5 + 1 * 0.4 * -1.0 + 2 * -0.5)
    assert whole_loss(samples, stage(loss="dapo", plan_weight=0.4)) == pytest.approx(heavier / 7, abs=1e-7)


def test_plans_that_were_not_timed_teach_nothing_and_the_code_goes_on():
    samples = [sample(4, 2, 0.5, math.nan), sample(3, 1, -0.5, math.nan)]
    assert whole_loss(samples, stage(loss="dapo")) == pytest.approx(-(2 * 0.5 + 2 * -0.5) / 4, abs=1e-7)
    only_plans = [sample(4, 2, math.nan, 1.0), sample(3, 1, math.nan, -1.0)]
    assert whole_loss(only_plans, stage(loss="dapo")) == pytest.approx(-(2 * 0.1 - 1 * 0.1) / 3, abs=1e-7)


def test_a_round_that_was_answered_ahead_keeps_its_classes(tmp_path: Path):
    class File(PromptFile):
        def __init__(self) -> None: ...

        def prompt(self, number: int) -> Prompt:
            return Prompt(number, np.arange(3), "p", None, {})

    group = (sample(4, 2, 0.5, 1.0), sample(3, 1, -0.5, math.nan))
    kept = KeptRounds(tmp_path, 0, 1, File(), lambda: (), 1)
    kept.write(1, 0, Answered(Round((group,), (), 0.0, 0, 1.0, 0.5), 0, 1))
    found = kept.read(1, 0, 0)
    assert found is not None
    first, second = found.found.samples
    assert (first.plan_tokens, first.plan_advantage) == (2, 1.0)
    assert second.plan_tokens == 1
    assert math.isnan(second.plan_advantage)
    assert whole_loss([first, second], stage()) == whole_loss(list(group), stage())


def test_without_classes_a_plan_is_like_any_other_token():
    plain = GRPO(name="rl", rewards=[RewardSource(kind="kernel", key="task")], mismatch="ignore")
    assert not plain.classes
    assert whole_loss([sample(4, 0, 0.5, math.nan)], plain) == pytest.approx(-0.5, abs=1e-7)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="speed is of kernels"):
        RewardSource(kind="exact", speed=True)
    with pytest.raises(ValueError, match="all are for the plan's tokens"):
        GRPO(name="rl", rewards=[RewardSource(kind="kernel", key="task", tokens="plan")])


JUDGES = """
def digits(prompt, answer, truth):
    return sum(c.isdigit() for c in answer) / 6

def half(prompt, answer, truth):
    return 0.5
"""


def test_a_run_with_classes_trains_and_shows_both(tmp_path: Path):
    """The model writes no code, so that all of an answer is the code's."""
    name = tmp_path / "judges.py"
    name.write_text(JUDGES)
    source = "{{kind: function, function: '{name}:{what}', tokens: {tokens}}}"
    rewards = ", ".join(
        source.format(name=name, what=what, tokens=tokens) for what, tokens in (("digits", "code"), ("half", "plan"))
    )
    run = new_run(tmp_path, "stages.rl.reward=null", f"stages.rl.rewards=[{rewards}]", "stages.rl.answers=null", "budget.steps=2")
    assert train_policy(run) == 0
    assert set(series(run, "reward_plan").values()) == {0.5}
    assert 0 < series(run, "reward")[1] < 1
    assert max(series(run, "gradient_norm").values()) > 0
