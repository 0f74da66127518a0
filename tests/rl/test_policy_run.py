"""A stage of kind rl goes through the loop that every stage goes through: rollouts, kill, resume, held-out answers."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from runs import DIGITS, new_run, rounds, series, weights

from windtunnel.checkpoint import CheckpointStore
from windtunnel.launch import Options
from windtunnel.launch.prepare import prepare_run
from windtunnel.launch.ranks import run_ranks
from windtunnel.recipe import UserError, load_recipe
from windtunnel.rl import evaluate_trained, train_policy
from windtunnel.rl.rollouts import best_of
from windtunnel.run import MetricsReader, RunFolder

pytestmark = pytest.mark.end_to_end


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_the_reward_rises_and_the_best_answers_decide(tmp_path: Path) -> None:
    run = new_run(tmp_path, "budget.steps=24", "stages.rl.learning_rate=3e-2", "stages.rl.answers.every=8 steps")
    assert train_policy(run) == 0
    rewards = series(run, "reward")
    assert sorted(rewards) == list(range(1, 25))
    early, late = (np.mean([rewards[step] for step in steps]) for steps in (range(1, 5), range(21, 25)))
    assert late > early + 0.2
    held_out = series(run, "answers_reward")
    assert sorted(held_out) == [0, 8, 16, 24]
    assert max(held_out, key=lambda step: held_out[step]) > 0
    best = CheckpointStore(run / "checkpoints").best()
    assert best is not None
    assert best.score == pytest.approx(max(held_out.values()))
    # Sampler and learner compute the same model, and say so of every step.
    assert max(series(run, "mismatch_largest").values()) < 1e-3
    assert set(series(run, "mismatch_outside").values()) == {0.0}
    kept = rounds(run)
    assert len(kept) == 20
    assert {"prompt", "answer", "reward", "right", "advantage", "version"} <= kept["round-000024.jsonl"][0].keys()


@pytest.mark.parametrize(
    "sets",
    [(), ("model.adapter={rank: 4}", "stages.rl.updates=2", "stages.rl.reference=true", "stages.rl.kl=0.1")],
    ids=["one update", "adapter, two updates, reference"],
)
def test_a_stopped_run_resumes_as_if_it_had_never_stopped(tmp_path: Path, sets: tuple[str, ...]) -> None:
    whole, halted = new_run(tmp_path, *sets), new_run(tmp_path, *sets)
    assert train_policy(whole) == 0
    assert train_policy(halted, after_step=lambda step, _: os.kill(os.getpid(), signal.SIGTERM) if step == 4 else None) == 3
    assert train_policy(halted) == 0
    for name in ("loss", "reward", "answer_length", "answers_reward", "entropy"):
        assert series(halted, name) == series(whole, name), name
    one, other = weights(whole), weights(halted)
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)
    assert [row["answer"] for row in rounds(whole)["round-000006.jsonl"]] == [
        row["answer"] for row in rounds(halted)["round-000006.jsonl"]
    ]


@pytest.mark.parametrize(("loss", "clips"), [("gspo", True), ("sapo", False)])
def test_the_share_of_clipped_tokens_is_shown_where_there_is_a_clip(tmp_path: Path, loss: str, clips: bool) -> None:
    sets = ("budget.steps=3", f"stages.rl.loss={loss}", "stages.rl.updates=2", "stages.rl.clip=0.0001")
    run = new_run(tmp_path, *sets)
    assert train_policy(run) == 0
    shown = series(run, "clipped")
    assert (max(shown.values()) > 0) if clips else not shown


def test_told_to_stop_while_it_generates_it_goes_back_to_the_prompts_of_that_round(tmp_path: Path) -> None:
    """The reward sends the signal in the second round, in the middle of it."""
    mark = tmp_path / "calls"
    stopping = (
        "import os, pathlib, signal\n"
        "def score(prompt, answer, truth):\n"
        f"    mark = pathlib.Path({str(mark)!r})\n"
        "    count = int(mark.read_text()) if mark.exists() else 0\n"
        "    mark.write_text(str(count + 1))\n"
        "    if count == 20:\n"
        "        os.kill(os.getppid(), signal.SIGTERM)\n"
        "    return sum(c.isdigit() for c in answer) / 6\n"
    )
    sets = ("stages.rl.equal_rewards=keep", "stages.rl.answers=null")
    whole, halted = new_run(tmp_path, *sets), new_run(tmp_path, *sets, reward=stopping)
    assert train_policy(halted) == 3
    (tmp_path / "reward.py").write_text("def score(prompt, answer, truth):\n    return sum(c.isdigit() for c in answer) / 6\n")
    assert train_policy(whole) == 0
    assert train_policy(halted) == 0
    assert series(halted, "loss") == series(whole, "loss")
    with MetricsReader(RunFolder.open(halted).metrics_path) as reader:
        assert any(event.kind == "resumed" for event in reader.events())


MOODY = """
import os, pathlib, signal
CALLS = pathlib.Path({mark!r})
def score(prompt, answer, truth):
    count = int(CALLS.read_text()) if CALLS.exists() else 0
    CALLS.write_text(str(count + 1))
    if count == {stop}:
        os.kill(os.getppid(), signal.SIGTERM)
    return sum(c.isdigit() for c in answer) / 6 + {first} * (count < 8)
"""
"""As `runs.DIGITS`, but worth more for the first eight answers, which are those to held-out prompts before the first step."""


def test_a_policy_that_no_step_makes_better_is_the_best(tmp_path: Path) -> None:
    run = new_run(tmp_path, reward=MOODY.format(mark=str(tmp_path / "calls"), stop=-1, first=5))
    assert train_policy(run) == 0
    store = CheckpointStore(run / "checkpoints")
    best = store.best()
    assert best is not None
    assert best.step == 0
    assert best.score == series(run, "answers_reward")[0] >= 5
    assert RunFolder.open(run).manifest["summary"]["best_step"] == 0
    with MetricsReader(RunFolder.open(run).metrics_path) as reader:
        assert [event.step for event in reader.events("no_gain")] == [6]


@pytest.mark.parametrize("sets", [(), ("stages.rl.reference=true", "stages.rl.kl=0.1")], ids=["plain", "reference"])
def test_gone_on_with_before_the_first_step_it_is_not_asked_twice(tmp_path: Path, sets: tuple[str, ...]) -> None:
    """The reward sends the signal when the last held-out prompt is judged."""
    whole = new_run(tmp_path, *sets)
    halted = new_run(tmp_path, *sets, reward=MOODY.format(mark=str(tmp_path / "calls"), stop=7, first=0))
    assert train_policy(halted) == 3
    assert [c.step for c in CheckpointStore(halted / "checkpoints").all()] == [0]
    (tmp_path / "reward.py").write_text(DIGITS)
    assert train_policy(whole) == 0
    assert train_policy(halted) == 0
    with MetricsReader(RunFolder.open(halted).metrics_path) as reader:
        assert [event.step for event in reader.events("answers")] == [0, 3, 6]
        assert [event.message for event in reader.events("resumed")] == ["resumed from step 0"]
    for name in ("loss", "reward", "answers_reward"):
        assert series(halted, name) == series(whole, name), name


def test_what_nothing_is_known_of_is_masked_and_counted_never_zero(tmp_path: Path) -> None:
    """A reward that fails on some answers: those are no bad answers."""
    failing = "def score(prompt, answer, truth):\n    assert sum(map(ord, str(prompt) + answer)) % 2\n    return 1.0\n"
    run = new_run(tmp_path, "stages.rl.equal_rewards=keep", "stages.rl.retries=1", reward=failing)
    assert train_policy(run) == 0
    unknown = series(run, "unknown")
    assert 0 < max(unknown.values()) < 1
    # All that is known is worth 1, so that there is nothing to learn; a 0 for the others would have moved the weights.
    assert set(series(run, "reward").values()) == {1.0}
    assert max(series(run, "gradient_norm").values()) == 0.0
    assert max(series(run, "asked_again").values()) > 0
    rows = [row for rows in rounds(run).values() for row in rows]
    assert all(row["advantage"] is None for row in rows if row["reward"] is None)
    assert all(math.isfinite(row["reward"]) for row in rows if row["reward"] is not None)


def test_two_ranks_share_prompts_and_weights(tmp_path: Path) -> None:
    """Each answers its half of the prompts; sharded weights, two updates, a reference."""
    folder = new_run(tmp_path, "budget.steps=3", "stages.rl.updates=2", "stages.rl.reference=true", "stages.rl.kl=0.01")
    with RunFolder.open(folder) as run:
        run.lock()
        plan = run.manifest["plan"]
        plan["layout"] |= {"ranks": 2}
        run.update(plan=plan)
    with (tmp_path / "output").open("w") as output:
        run_ranks(folder, 2, as_json=False, output=output)
    assert RunFolder.open(folder).manifest["exit_code"] == 0
    assert sorted(series(folder, "answers_reward")) == [0, 3]
    assert max(series(folder, "mismatch_largest").values()) < 1e-3
    assert set(series(folder, "learned").values()) == {16.0}
    divergence = series(folder, "kl")
    assert divergence[1] == 0.0 < divergence[3]


def test_only_the_best_answers_are_learned_from(tmp_path: Path) -> None:
    assert best_of([0.1, 0.5, math.nan, 0.5, 0.4], 2) == {1, 3}
    assert best_of([0.1, math.nan], None) == {0}
    run = new_run(tmp_path, "stages.rl.best=1", "budget.steps=1", "stages.rl.answers=null", "stages.rl.equal_rewards=keep")
    assert train_policy(run) == 0
    groups: dict[int, list[dict[str, object]]] = {}
    for row in rounds(run)["round-000001.jsonl"]:
        groups.setdefault(int(row["prompt_number"]), []).append(row)
    assert groups
    for rows in groups.values():
        learned = [row for row in rows if row["advantage"] is not None]
        assert len(learned) == 1
        assert learned[0]["reward"] == max(float(row["reward"]) for row in rows)  # type: ignore[arg-type]


def test_a_policy_is_evaluated_beside_what_it_began_with(tmp_path: Path) -> None:
    run = new_run(
        tmp_path, "data.validation=0.3", "stages.rl.answers.prompts=4", "budget.steps=3", "stages.rl.learning_rate=1e-3"
    )
    assert train_policy(run) == 0
    first = evaluate_trained(run, 0, problems=6)
    assert first.validation is None
    assert first.answers is not None
    assert first.answers.n == 6
    told = json.loads((run / "evaluation-step-0.json").read_text())
    assert told["bits_per_byte"] is None
    assert told["answers"]["reward"] == pytest.approx(first.answers.reward)  # type: ignore[union-attr]
    # Asked of the same weights as before the first step, in the same order, other prompts than chose the checkpoint.
    again = evaluate_trained(run, 0, problems=6)
    assert [a.text for a in again.answers.answers] == [a.text for a in first.answers.answers]  # type: ignore[union-attr]
    assert not first.warnings or "began with random weights" in first.warnings[0]


def test_one_that_is_a_whole_recipe_goes_on_by_the_same_command(tmp_path: Path) -> None:
    run = new_run(tmp_path, "stages.rl.answers=null")
    assert train_policy(run, after_step=lambda step, _: os.kill(os.getpid(), signal.SIGTERM) if step == 2 else None) == 3
    path = tmp_path / "tiny-rl.yaml"
    again = prepare_run(load_recipe(path, ["stages.rl.answers=null"]), Options(run=run, resume=True, yes=True), lambda text: None)
    again.close()
    assert again.path == run
    assert train_policy(run) == 0


def test_a_reward_that_was_changed_is_refused_until_that_is_confirmed(tmp_path: Path) -> None:
    run = new_run(tmp_path, "stages.rl.answers=null")
    own, judge, said = load_recipe(run / "recipe.yaml"), tmp_path / "reward.py", list[str]()

    def go_on(*, yes: bool) -> None:
        prepare_run(own, Options(run=run, resume=True, yes=yes), said.append).close()

    go_on(yes=False)
    judge.write_text(DIGITS.replace("/ 6", "/ 3"))
    for _ in range(2):
        with pytest.raises(UserError, match=r"stages\.rl\.reward: .*reward\.py has changed since"):
            go_on(yes=False)
    go_on(yes=True)
    assert "do not compare" in "\n".join(said)
    assert "has changed" in RunFolder.open(run).manifest["changes"][-1]["changes"][0]
    go_on(yes=False)
    judge.write_text(DIGITS)
    go_on(yes=False)
