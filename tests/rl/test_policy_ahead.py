"""Rounds that are answered ahead follow a schedule, so that a run which was killed goes on as if it had not been."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from runs import killed, new_run, require_same, rounds, series

from windtunnel.generate import GenerationJob
from windtunnel.recipe import UserError
from windtunnel.rl import EngineProcess, train_policy

pytestmark = pytest.mark.end_to_end

BESIDE = ("stages.rl.engine=transformers", "stages.rl.equal_rewards=resample")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_a_killed_run_goes_on_with_the_rounds_that_were_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints are of steps 2 and 4; it is killed after 3, and then an engine is."""
    sets = (*BESIDE, "stages.rl.overlap=2")
    whole, halted = new_run(tmp_path, *sets), new_run(tmp_path, *sets)
    assert train_policy(whole) == 0
    assert killed(halted, 3)
    true, asked = EngineProcess.submit, []

    def submit(self: EngineProcess, jobs: Sequence[tuple[int, GenerationJob]]) -> None:
        asked.append(len(jobs))
        if len(asked) == 1:
            os.kill(self.pid, signal.SIGKILL)
        true(self, jobs)

    monkeypatch.setattr(EngineProcess, "submit", submit)
    assert train_policy(halted) == 0
    require_same(whole, halted)
    assert series(halted, "staleness") == series(whole, "staleness")
    assert list(series(whole, "staleness").values()) == [0, 1, 2, 2, 2, 2]
    assert series(whole, "staleness_largest") == series(whole, "staleness")
    assert set(series(whole, "too_old").values()) == {0.0}


def test_what_was_ahead_and_is_gone_is_answered_anew(tmp_path: Path) -> None:
    run = new_run(tmp_path, *BESIDE, "stages.rl.overlap=1")
    assert train_policy(run, after_step=lambda step, _: os.kill(os.getpid(), signal.SIGTERM) if step == 2 else None) == 3
    shutil.rmtree(run / "rollouts" / "ahead")
    shutil.rmtree(run / "weights", ignore_errors=True)
    assert train_policy(run) == 0
    assert sorted(series(run, "loss")) == list(range(1, 7))
    assert list(series(run, "staleness").values()) == [0, 1, 0, 1, 1, 1]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_at_random_moments_nothing_is_learned_twice_and_nothing_lost(tmp_path: Path) -> None:
    sets = (*BESIDE, "stages.rl.overlap=2", "budget.steps=120", "checkpoints.every=3 steps")
    whole, halted = new_run(tmp_path, *sets), new_run(tmp_path, *sets)
    assert train_policy(whole) == 0
    draw, kills = random.Random(5), 0
    while kills < 8 and killed(halted, seconds=draw.uniform(0.01, 2.0)):
        kills += 1
    assert kills >= 3
    assert train_policy(halted) == 0
    require_same(whole, halted)


def test_engines_that_take_weights_in_flight_answer_by_younger_ones_and_each_token_says_by_which(tmp_path: Path) -> None:
    run = new_run(tmp_path, *BESIDE, "stages.rl.overlap=2", "stages.rl.in_flight=true", "stages.rl.samples=16")
    assert train_policy(run) == 0
    assert sorted(series(run, "loss")) == list(range(1, 7))
    stale, largest, mixed = (series(run, name) for name in ("staleness", "staleness_largest", "mixed_versions"))
    assert set(series(run, "too_old").values()) == {0.0}
    for step in range(1, 7):
        assert 0 <= stale[step] <= largest[step] <= 2
        assert 0 <= mixed[step] <= 1
    for lines in rounds(run).values():
        for answer in lines:
            spans = answer.get("versions", [[answer["version"], answer["tokens"]]])
            assert sum(tokens for _, tokens in spans) == answer["tokens"]
            assert [version for version, _ in spans] == sorted({version for version, _ in spans})
            assert min((version for version, _ in spans), default=answer["version"]) == answer["version"]


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (("stages.rl.in_flight=true",), "in_flight: without rounds ahead"),
        (("stages.rl.in_flight=true", "stages.rl.overlap=1", "stages.rl.engine=vllm"), "takes new weights when its answers are"),
    ],
)
def test_what_cannot_be_in_flight_is_named(tmp_path: Path, sets: tuple[str, ...], words: str) -> None:
    with pytest.raises(UserError, match=words):
        new_run(tmp_path, *sets)
