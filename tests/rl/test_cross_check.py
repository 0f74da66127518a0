"""Accepted answers judged once more: what is refused then is not learned from, and is kept to be read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import killed, new_run, require_same, rounds, series

from windtunnel.data import Prompt, PromptFile
from windtunnel.recipe import GRPO
from windtunnel.rl import Checked, Reward, Rewards, Round, Sample, cross_check, train_policy
from windtunnel.rl.cross_check import swap_for, with_check
from windtunnel.rl.kept_rounds import Answered, KeptRounds
from windtunnel.rl.signs import monitor_metrics, sum_signs
from windtunnel.verify import Verdict, Verifier, accept, refuse

CHECKED = ("stages.rl.cross_check=0.5", "stages.rl.answers=null")


def prompt(number: int, answer: Any, **data: Any) -> Prompt:
    return Prompt(number, np.array([1, 2]), f"prompt {number}", answer, data)


def test_the_first_judge_is_asked_another_way_and_for_another_prompt() -> None:
    sources: Any = [{"kind": "math"}, {"kind": "format", "task": {"boxed": True}}]
    with Rewards(GRPO(name="rl", rewards=sources)) as rewards:
        assert rewards.check(prompt(0, "1/2"), "0.5", prompt(1, "1/3")) == Checked(
            True, "it has the values of the right one", False
        )
        assert rewards.check(prompt(0, "1/2"), "0.5", prompt(1, "0.50")).swapped is True
        assert rewards.check(prompt(0, "1/2"), "0.5", None).swapped is None
        assert rewards.check(prompt(0, "1/2"), "0.25", None).accepted is False


def test_a_second_judge_that_fails_leaves_the_first_ones_word() -> None:
    reward = Reward(1.0, (1.0,), True)
    assert with_check(reward, Checked(None, "no worker")) == Reward(1.0, (1.0,), True, check="no worker")
    refused = with_check(reward, Checked(False, "it is not", True))
    assert (refused.total, refused.accepted, refused.parts, refused.checked) == (None, None, (1.0,), False)


class Overflows:
    """A second opinion that accepts, and names what goes wrong far from the task's own inputs."""

    def __init__(self, fragile: list[str]) -> None:
        self.fragile = fragile

    def verify(self, answer: str) -> Verdict:
        return accept("tiny", "Right on every case.", evidence={"fragile": self.fragile})


@pytest.mark.parametrize("fragile", [["non-finite: the output is nan (tiny float32 large)"], []])
def test_a_kernel_that_is_wrong_far_from_its_tasks_inputs_is_learned_from_and_counted(
    fragile: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_check, "second_opinion", lambda verifier: Overflows(fragile))
    stage = GRPO(name="rl", rewards=[{"kind": "math"}])  # type: ignore[list-item]
    with Rewards(stage) as rewards:
        found = rewards.check(prompt(0, "1/2"), "0.5", None)
    assert (found.accepted, found.fragile) == (True, bool(fragile))
    assert all(text in found.message for text in fragile)
    reward = with_check(Reward(1.0, (1.0,), True, share=1.0), found)
    assert (reward.total, reward.accepted, reward.checked) == (1.0, True, True)
    sample = Sample(prompt(0, "1/2"), 0, np.arange(3), np.zeros(3, np.float32), "0.5", False, 0, reward)
    assert sample.to_json()["fragile"] == bool(fragile)
    signs = sum_signs(Round(((sample,),), (), 0.0, 0, 1.0, 0.5), stage)
    assert monitor_metrics(signs, [])["cross_check_fragile"] == len(fragile)


def test_the_other_prompt_is_of_the_same_subject_with_another_right_answer() -> None:
    stage = GRPO(name="rl", rewards=[{"kind": "math", "of": "a"}, {"kind": "format", "task": {"boxed": True}}])  # type: ignore[list-item]
    asked = [prompt(0, "1", subject="a"), prompt(1, "1", subject="a"), prompt(2, "2", subject="b"), prompt(3, "3", subject="a")]
    found = [swap_for(stage, asked, i) for i in range(4)]
    assert [None if one is None else one.number for one in found] == [3, 3, None, 0]
    assert swap_for(stage, asked[:2], 0) is None
    assert swap_for(stage, [prompt(0, None, subject="a"), asked[3]], 0) is None


def test_a_round_that_was_answered_ahead_keeps_its_checks(tmp_path: Path) -> None:
    class File(PromptFile):
        def __init__(self) -> None: ...

        def prompt(self, number: int) -> Prompt:
            return prompt(number, "7")

    tokens = np.arange(3)
    rewards = [Reward(1.0, (1.0,), True, share=0.5, checked=True, check="again", swapped=False), Reward(0.0, (0.0,), False)]
    group = tuple(Sample(prompt(1, "7"), i, tokens, np.zeros(3, np.float32), "7", False, 2, one) for i, one in enumerate(rewards))
    kept = KeptRounds(tmp_path, 0, 1, File(), lambda: (), 1)
    kept.write(1, 2, Answered(Round((group,), (), 0.0, 0, 1.0, 0.5), 0, 1))
    found = kept.read(1, 0, 2)
    assert found is not None
    assert [sample.reward for sample in found.found.samples] == rewards


def refuses_even(verifier: Verifier) -> Verifier:
    """A second opinion that refuses answers of an even length."""

    class Second:
        def verify(self, answer: str) -> Verdict:
            return refuse("second", "even", "its length is even") if len(answer) % 2 == 0 else verifier.verify(answer)

    return Second()


def test_what_is_refused_is_not_learned_from_and_is_kept_and_a_second_run_does_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(cross_check, "second_opinion", refuses_even)
    runs = [new_run(tmp_path, *CHECKED, "stages.rl.keep_rollouts=20") for _ in range(2)]
    assert [train_policy(run) for run in runs] == [0, 0]
    require_same(*runs)
    kept = {name: rows for name, rows in rounds(runs[0]).items() if name.startswith("disagreed-")}
    for step, count in series(runs[0], "cross_check_disagrees").items():
        rows = kept.pop(f"disagreed-{step:06d}.0.jsonl", [])
        assert len(rows) == count
        for row in rows:
            assert (row["reward"], row["advantage"], row["checked"]) == (None, None, False)
            assert row["check"] == "its length is even"
            assert len(row["answer"]) % 2 == 0
    assert not kept
    assert sum(series(runs[0], "cross_check_disagrees").values()) > 0
    assert set(series(runs[0], "unknown").values()) == {0.0}
    everything = [row for name, rows in rounds(runs[0]).items() if name.startswith("round-") for row in rows]
    assert all(row["right"] or row["checked"] is False for row in everything if "checked" in row)


def test_each_round_in_which_something_is_accepted_has_a_check_and_none_is_made_where_none_is_asked(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    for share in (1e-9, 0.0, 1.0):
        run = new_run(tmp_path, "budget.steps=3", "stages.rl.answers=null", f"stages.rl.cross_check={share}")
        assert train_policy(run) == 0
        for rows in rounds(run).values():
            right, checked = (sum(bool(row.get(key)) for row in rows) for key in ("right", "checked"))
            assert checked == {1e-9: min(1, right), 0.0: 0, 1.0: right}[share]


def test_checks_do_not_change_what_is_learned(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    with_checks, without = (new_run(tmp_path, "budget.steps=3", f"stages.rl.cross_check={share}") for share in (1.0, 0.0))
    assert [train_policy(run) for run in (with_checks, without)] == [0, 0]
    assert series(with_checks, "loss") == series(without, "loss")
    assert not any(math.isnan(value) for value in series(with_checks, "loss").values())


def test_a_run_that_is_killed_goes_on_with_the_same_checks(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    whole, halted = (new_run(tmp_path, *CHECKED) for _ in range(2))
    assert train_policy(whole) == 0
    assert killed(halted, 3)
    assert train_policy(halted) == 0
    require_same(whole, halted)
    for name in ("cross_checked", "swapped_accepted", "judges_apart"):
        assert series(whole, name) == series(halted, name)
    facts = [json.loads(max((run / "checkpoints").glob("step-*/*.json")).read_text()) for run in (whole, halted)]
    assert facts[0]["state"]["drift"] == facts[1]["state"]["drift"]
