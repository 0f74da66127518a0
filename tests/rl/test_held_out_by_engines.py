"""Held-out prompts are answered by the engines that answer rounds, as a copy of the weights in the learner would answer them."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import new_run, require_same, series

from windtunnel.generate import GenerationJob
from windtunnel.recipe import UserError
from windtunnel.rl import EngineProcess, method, train_policy
from windtunnel.run import MetricsReader, RunFolder
from windtunnel.train import ByCopy, held_out_answers

pytestmark = pytest.mark.end_to_end

BESIDE = "stages.rl.engine=transformers"
WAYS = [(), ("stages.rl.overlap=1",), ("stages.rl.overlap=2",), ("stages.rl.sync=direct",)]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def said(run: Path) -> list[dict[str, Any]]:
    """Return what was recorded of the held-out answers, in order."""
    with MetricsReader(RunFolder.open(run).metrics_path) as reader:
        return [event.data for event in reader.events() if event.kind == "answers"]


@pytest.mark.parametrize("way", WAYS, ids=["by files", "a round ahead", "two rounds ahead", "directly"])
def test_engines_answer_held_out_prompts_as_a_copy_of_the_weights_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: tuple[str, ...]
) -> None:
    """Greedy answers in fp32 are the same ones, and asking changes no round."""
    sets = (BESIDE, *way, "stages.rl.answers={every: 2 steps, prompts: 8}")
    engines, copied = new_run(tmp_path, *sets), new_run(tmp_path, *sets)
    with monkeypatch.context() as patch:
        patch.setattr(held_out_answers, "plain_model", None)  # no learner copies its weights
        assert train_policy(engines) == 0
    with monkeypatch.context() as patch:
        patch.setattr(method, "writer_of", lambda stage, work, learner, questions, tokens, stop: ByCopy(
            learner.inner, work.ranks, work.data.tokenizer, questions.ends, tokens, stop))  # fmt: skip
        assert train_policy(copied) == 0
    assert sorted(series(engines, "answers_reward")) == [0, 2, 4, 6]
    assert len(set(series(engines, "answers_reward").values())) > 1, "the weights differ, and so do answers"
    assert said(engines) == said(copied)
    require_same(engines, copied)
    assert series(engines, "staleness") == series(copied, "staleness")


@pytest.mark.parametrize("way", WAYS[:2], ids=["in turn with rounds", "a round ahead"])
def test_who_is_told_to_stop_while_engines_answer_has_no_score_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: tuple[str, ...]
) -> None:
    sets = (BESIDE, *way, "stages.rl.answers={every: 3 steps, prompts: 7}")
    whole, halted = new_run(tmp_path, *sets), new_run(tmp_path, *sets)
    assert train_policy(whole) == 0
    true, held_out = EngineProcess.submit, []

    def submit(self: EngineProcess, jobs: Sequence[tuple[int, GenerationJob]]) -> None:
        held_out.append(all(job.temperature == 0 for _, job in jobs))
        if held_out[-1] and sum(held_out) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        true(self, jobs)

    with monkeypatch.context() as patch:
        patch.setattr(EngineProcess, "submit", submit)
        assert train_policy(halted) == 3
    assert sorted(series(halted, "answers_reward")) == [0]
    assert train_policy(halted) == 0
    assert sorted(series(halted, "loss")) == list(range(1, 7))
    assert series(halted, "answers_reward")[6] == series(whole, "answers_reward")[6]


def test_answers_that_are_longer_than_engines_write_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"answers\.tokens: 12, and engines write at most answer_tokens, 6"):
        new_run(tmp_path, BESIDE, "stages.rl.answers.tokens=12")
