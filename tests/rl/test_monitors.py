"""Monitors: each names a reward that is gamed, and is silent where nothing is wrong."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import new_run, series

from windtunnel.data import Prompt
from windtunnel.recipe import GRPO
from windtunnel.rl import Reward, Round, Sample, train_policy
from windtunnel.rl.drift import ROUNDS, Drift
from windtunnel.rl.health import findings
from windtunnel.rl.metrics import RoundSums
from windtunnel.rl.monitors import MONITORS, monitor_findings
from windtunnel.rl.signs import monitor_metrics, repeats, sketch, sketches, sum_signs
from windtunnel.run import MetricsReader, RunFolder, described

STAGE = GRPO(name="rl", rewards=[{"kind": "math"}, {"kind": "format", "task": {"boxed": True}, "weight": 0.5}])  # type: ignore[list-item]
DRAW = np.random.default_rng(7)


def sample(number: int = 0, tokens: Any = range(4), total: float | None = 0.0, **more: Any) -> Sample:
    text, parts = more.pop("text", "so it is"), more.pop("parts", (total, 0.0))
    prompt = Prompt(number, np.array([1, 2]), f"prompt {number}", "7", {})
    ids = np.array(list(tokens))
    reward = Reward(total, parts, None if total is None else total >= 1.0, **more)
    return Sample(prompt, 0, ids, np.zeros(len(ids), dtype=np.float32), text, False, 0, reward)


def monitored(*groups: list[Sample], stage: GRPO = STAGE, ranks: int = 1) -> dict[str, float]:
    """Return the monitors of a round whose groups lie on so many ranks."""
    rounds = [Round(tuple(map(tuple, groups[i::ranks])), (), 0.0, 0, 0.0, 0.0) for i in range(ranks)]
    sums: dict[str, float] = {}
    for found in rounds:
        for name, value in sum_signs(found, stage).items():
            sums[name] = sums.get(name, 0.0) + value
    return monitor_metrics(sums, [row for found in rounds for row in sketches(found, stage)])


def raised(metrics: dict[str, float]) -> set[str]:
    return {one.band for one in monitor_findings(metrics, STAGE) if one.message is not None}


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_reward_that_goes_with_length_is_named_whatever_prompts_are_longer(ranks: int) -> None:
    paid = [[sample(g, range(n + 50 * g), n / 9 - g) for n in range(1, 7)] for g in range(4)]
    blind = [[sample(g, range(n + 50 * g), 0.5 * (n in (2, 5)) - 9 * g) for n in range(1, 7)] for g in range(4)]
    assert monitored(*paid, ranks=ranks)["reward_by_length"] == pytest.approx(1.0)
    assert raised(monitored(*paid, ranks=ranks)) == {"reward_by_length"}
    assert abs(monitored(*blind, ranks=ranks)["reward_by_length"]) < 1e-9
    assert raised(monitored(*blind, ranks=ranks)) == set()


def test_few_answers_and_equal_rewards_say_nothing_of_length() -> None:
    assert "reward_by_length" not in monitored([sample(0, range(n), n / 9) for n in range(1, 5)])
    assert "reward_by_length" not in monitored(*[[sample(g, range(n), 1.0) for n in range(1, 7)] for g in range(4)])


def test_sketches_agree_as_much_as_texts_do() -> None:
    """Against the share of runs that two sequences have in common, counted."""
    for keep in (0.0, 0.3, 0.6, 0.9, 1.0):
        errors = []
        for _ in range(20):
            one = DRAW.integers(0, 1000, 400)
            other = np.concatenate([one[: int(400 * keep)], DRAW.integers(0, 1000, 400 - int(400 * keep))])
            runs = [{tuple(x[i : i + 4]) for i in range(397)} for x in (one, other)]
            shared = len(runs[0] & runs[1]) / len(runs[0] | runs[1])
            errors.append(np.mean(np.equal(sketch(one), sketch(other))) - shared)
        assert abs(float(np.mean(errors))) < 0.06, keep


@pytest.mark.parametrize("ranks", [1, 2])
def test_accepted_answers_that_repeat_others_are_counted_by_whose_they_repeat(ranks: int) -> None:
    own = [DRAW.integers(0, 1000, 200) for _ in range(8)]
    nearly = own[0].copy()
    nearly[60] = 0
    apart = [[sample(g, own[2 * g], 1.0), sample(g, own[2 * g + 1], 1.0)] for g in range(4)]
    assert monitored(*apart, ranks=ranks)["accepted_repeats"] == monitored(*apart, ranks=ranks)["accepted_elsewhere"] == 0
    same = [[sample(g, own[g], 1.0), sample(g, own[g], 1.0)] for g in range(3)] + [[sample(3, own[3], 1.0)]]
    assert monitored(*same, ranks=ranks)["accepted_repeats"] == pytest.approx(6 / 7)
    assert raised(monitored(*same, ranks=ranks)) == {"accepted_repeats"}
    elsewhere = [[sample(0, own[0], 1.0)], [sample(1, nearly, 1.0)], [sample(2, own[2], 1.0)], [sample(3, own[0], 0.0)]]
    assert monitored(*elsewhere, ranks=ranks)["accepted_elsewhere"] == pytest.approx(2 / 3)
    assert raised(monitored(*elsewhere, ranks=ranks)) == {"accepted_elsewhere"}


def test_short_right_answers_are_the_same_for_good_reason() -> None:
    assert "accepted_repeats" not in monitored(*[[sample(g, range(6), 1.0) for _ in range(4)] for g in range(4)])
    assert repeats([]) is None


def test_the_same_kernel_for_different_tasks_is_named_whatever_stands_around_it() -> None:
    kernel = "```python\nclass ModelNew:\n    def forward(self, x):\n        return tl.load(x) + tl.store(x, 1)\n```"
    stage = GRPO(name="rl", rewards=[{"kind": "kernel", "key": "task"}])  # type: ignore[list-item]
    said = [" ".join(map(str, DRAW.integers(0, 99, 100))) for _ in range(3)]
    groups = [[sample(g, text=f"{said[g]}\n{kernel}", total=1.0, share=0.1)] for g in range(3)]
    found = monitored(*groups, stage=stage)
    assert (found["accepted_elsewhere"], found["kernels_little"]) == (1.0, 1.0)
    assert found["kernel_share"] == pytest.approx(0.1)
    assert raised(found) == {"accepted_elsewhere", "kernels_little"}


def test_answers_that_loop_are_told_from_long_ones() -> None:
    loops, varied = "so it is 4. " * 60, " ".join(map(str, DRAW.integers(0, 999, 200)))
    found = monitored([sample(0, text=loops), sample(0, text=varied), sample(0, text="4")])
    assert found["self_repeating"] == pytest.approx(0.5)
    assert raised(found) == {"self_repeating"}


def test_reward_for_form_alone_is_a_share_of_what_was_given() -> None:
    form, both, none = ({"parts": parts, "total": t} for parts, t in (((0.0, 1.0), 0.5), ((1.0, 1.0), 1.5), ((0.0, 0.0), 0.0)))
    assert monitored([sample(**form), sample(**both), sample(**none)])["form_alone"] == pytest.approx(0.25)  # type: ignore[arg-type]
    assert raised(monitored([sample(**form), sample(**none)])) == {"form_alone"}  # type: ignore[arg-type]
    alone = GRPO(name="rl", rewards=[{"kind": "format", "task": {"boxed": True}}])  # type: ignore[list-item]
    assert "form_alone" not in monitored([sample(total=1.0, parts=(1.0,))], stage=alone)


def rounds_of(right: float, form: float, count: int) -> list[dict[str, float]]:
    noise = DRAW.normal(0, 0.02, (count, 2))
    return [
        {"reward": right + form / 2, "reward_deviation": 0.5, "right": right + float(a), "reward_math": right + float(a),
         "reward_format": form + float(b)}
        for a, b in noise
    ]  # fmt: skip


@pytest.mark.parametrize(("after", "part"), [((0.2, 0.9), True), ((0.6, 0.9), False), ((0.4, 0.4), False), ((0.2, 0.2), False)])
def test_a_judge_that_rises_while_right_answers_fall_is_named(after: tuple[float, float], part: bool) -> None:
    drift, last = Drift(STAGE), dict[str, float]()
    for number, metrics in enumerate([*rounds_of(0.4, 0.4, ROUNDS), *rounds_of(*after, ROUNDS)]):
        # Saved and gone on with after every round: nothing is lost.
        state = json.loads(json.dumps(drift.state()))
        drift = Drift(STAGE)
        drift.load(state)
        last = drift.note(metrics)
        assert ("judges_apart" in last) == (number == 2 * ROUNDS - 1)
    assert (raised(last) == {"judges_apart"}) is part


def test_harder_prompts_are_no_sign_of_a_gamed_judge() -> None:
    drift = Drift(STAGE)
    found = [drift.note(m | {"level": 1.0}) for m in rounds_of(0.4, 0.4, ROUNDS)]
    found += [drift.note(m | {"level": 2.0}) for m in rounds_of(0.1, 0.9, ROUNDS)]
    assert not any(found)


@pytest.mark.parametrize(
    ("reward", "right", "part"), [(0.9, 0.3, True), (0.9, 0.7, False), (0.3, 0.3, False), (0.9, 0.58, False)]
)
def test_reward_that_rises_while_held_out_answers_get_worse_is_named(reward: float, right: float, part: bool) -> None:
    drift = Drift(STAGE)
    drift.held_out(0.6, 64)
    for metrics in rounds_of(0.3, 0.2, 10):
        assert "held_out_apart" not in drift.note(metrics)
    for held in (0.6, right, right):
        drift.held_out(held, 64)
        drift.held_out(held, 64)  # as a run that goes on asks again
        said = [drift.note(metrics) for metrics in rounds_of(reward, 0.2, 10)]
        assert ["held_out_apart" in one for one in said] == [True] + [False] * 9
    assert (raised(said[0]) == {"held_out_apart"}) is part


def test_every_monitor_is_described_and_its_advice_names_what_to_do() -> None:
    assert all(described(name) == words for name, words in MONITORS.items())
    bad = monitor_findings(dict.fromkeys(MONITORS, 100.0), STAGE)
    assert all(one.message and ("stages.rl" in one.advice or "RUN/rollouts" in one.advice) for one in bad)
    assert len(bad) == len(MONITORS) - 3  # counts and means that no limit is for
    assert not findings({"judges_apart": 100.0})


def test_sums_of_a_rank_are_json() -> None:
    sums = RoundSums(accepted=[[1, *sketch(range(20))]])
    assert RoundSums(**json.loads(json.dumps(asdict(sums)))) == sums


SETS = ("stages.rl.answers=null", "stages.rl.prompts=8", "budget.steps=10", "checkpoints.every=10 steps")


def warned(run: Path) -> set[str]:
    """Return the bands that a run raised."""
    with MetricsReader(RunFolder.open(run).metrics_path) as reader:
        return {str(event.data["band"]) for event in reader.events() if "band" in event.data}


LONG = ("stages.rl.answer_tokens=16", "stages.rl.learning_rate=1e-3")
PLANTED: dict[str, tuple[str, set[str], tuple[str, ...]]] = {
    "length": ("return len(answer) / 8", {"reward_by_length", "swapped_accepted"}, LONG),
    "everything": ("return 0.9 + 0.1 * ('1' in answer)", {"swapped_accepted"}, ()),
    "careless": ("import random\n    return random.random()", {"cross_check"}, ()),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_reward_is_named_by_a_run(tmp_path: Path, planted: str) -> None:
    torch.set_num_threads(1)
    body, bands, sets = PLANTED[planted]
    run = new_run(tmp_path, *SETS, *sets, reward=f"def score(prompt, answer, truth):\n    {body}\n")
    assert train_policy(run) == 0
    assert bands <= warned(run)


HONEST = """
def score(prompt, answer, truth):
    same = sum(a == b for a, b in zip(answer, truth))
    return 1.0 if answer.strip() == truth.strip() else 0.4 * (same > 0)
"""


def test_an_honest_run_is_warned_of_nothing(tmp_path: Path) -> None:
    """It gets some answers right, which are judged twice and are not right for other prompts."""
    torch.set_num_threads(1)
    sets = ("budget.steps=25", "stages.rl.samples=16", "stages.rl.answer_tokens=3", "stages.rl.cross_check=0.5")
    run = new_run(tmp_path, *SETS, *sets, reward=HONEST)
    assert train_policy(run) == 0
    assert sum(series(run, "cross_checked").values()) > 5
    assert set(series(run, "cross_check_disagrees").values()) == {0.0}
    assert set(series(run, "swapped_accepted").values()) == {0.0}
    assert warned(run) & {"cross_check", *MONITORS} == set()
