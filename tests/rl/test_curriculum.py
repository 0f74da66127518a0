"""The curriculum: which prompts are asked, when it goes on, and that a killed run goes on where it was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from runs import DIGITS, new_run, rounds, series

from windtunnel.data import PromptFile, PromptLoader, prepare
from windtunnel.launch import Options, train_run
from windtunnel.recipe import CharacterTokenizer, Curriculum, PromptCorpus, UserError, load_recipe
from windtunnel.rl import Levels, Reward, Round, Sample, train_policy

RECORDS = [{"prompt": f"{i}+{i}=", "answer": str(2 * i), "level": (1, 2, 5)[i % 3]} for i in range(10, 100)]


def lines(path: Path, records: list[dict[str, Any]] = RECORDS) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def prompts(folder: Path, records: list[dict[str, Any]] = RECORDS) -> PromptFile:
    charlm = load_recipe("charlm")
    corpus = PromptCorpus(files=[str(lines(folder / "prompts.jsonl", records))])
    data = charlm.data.model_copy(update={"corpus": corpus, "tokenizer": CharacterTokenizer(), "validation": 0.1})
    made = prepare(charlm.model_copy(update={"data": data}), folder / "cache").train
    assert isinstance(made, PromptFile)
    return replace(made)


def answered(loader: PromptLoader, worth: float | None, count: int = 4) -> Round:
    """A round whose answers are all worth the same."""
    reward = Reward(worth, (worth,), True)
    found = tuple((Sample(prompt, 0, np.ones(1), np.zeros(1), "", False, 0, reward),) for prompt in loader.next_group(count))
    return Round(found, (), 0.0, 0, 0.0, 0.0)


def asked(loader: PromptLoader, count: int = 60) -> set[int]:
    return {prompt.data["level"] for prompt in loader.next_group(count)}


@pytest.mark.parametrize("mixed", [True, False])
def test_it_goes_on_when_the_newest_level_passes_the_bar(tmp_path: Path, mixed: bool):
    loader = PromptLoader(prompts(tmp_path), prompts=4, seed=3)
    levels = Levels(Curriculum(bar=0.5, rounds=2, mixed=mixed), loader)
    assert levels.levels == [1, 2, 5]
    assert asked(loader) == {1}
    for worth, moves in ((0.9, False), (0.05, False), (0.9, False), (0.2, True)):
        assert levels.note([levels.sums(answered(loader, worth))]) is moves
    assert levels.level == 2
    assert asked(loader) == ({1, 2} if mixed else {2})
    assert levels.note([(0.6, 1)]) is False, "one round is not two"
    assert levels.note([(0.6, 1)]) is True
    assert asked(loader) == ({1, 2, 5} if mixed else {5})
    assert [levels.note([(1.0, 1)]) for _ in range(5)] == [False] * 5, "there is none behind the last"


def test_what_is_not_known_or_not_of_the_level_counts_for_nothing(tmp_path: Path):
    loader = PromptLoader(prompts(tmp_path), prompts=4, seed=3)
    levels = Levels(Curriculum(bar=0.5, rounds=1), loader)
    assert levels.sums(answered(loader, None)) == (0.0, 0)
    assert levels.note([levels.sums(answered(loader, None)), (0.0, 0)]) is False
    assert levels.recent == []
    everything = PromptLoader(prompts(tmp_path), prompts=4, seed=3)
    round_ = answered(everything, 1.0, 60)
    count = sum(sample.prompt.data["level"] == 1 for sample in round_.everything)
    assert levels.sums(round_) == (count, count)


def test_ranks_are_taken_together_and_ask_different_prompts(tmp_path: Path):
    file = prompts(tmp_path)
    loaders = [PromptLoader(file, prompts=4, seed=3, rank=rank, world=2) for rank in range(2)]
    both = [Levels(Curriculum(bar=0.5, rounds=1), loader) for loader in loaders]
    numbers = [{prompt.number for prompt in loader.next_group()} for loader in loaders]
    assert not numbers[0] & numbers[1]
    assert [levels.note([(0.0, 1), (2.0, 2)]) for levels in both] == [True, True]
    alone = PromptLoader(file, prompts=4, seed=3)
    held = Levels(Curriculum(bar=0.5, rounds=1), alone)
    assert {prompt.number for prompt in alone.next_group()} == numbers[0] | numbers[1]
    assert held.note([(2.0, 3)])
    later = [{prompt.number for prompt in loader.next_group()} for loader in loaders]
    assert {prompt.number for prompt in alone.next_group()} == later[0] | later[1]


def test_a_state_goes_on_with_the_same_prompts(tmp_path: Path):
    file = prompts(tmp_path)
    first = PromptLoader(file, prompts=4, seed=3)
    levels = Levels(Curriculum(bar=0.5, rounds=2), first)
    for _ in range(3):
        levels.note([levels.sums(answered(first, 0.9))])
    again = PromptLoader(file, prompts=4, seed=3)
    other = Levels(Curriculum(bar=0.5, rounds=2), again)
    again.seek(first.position)
    other.load(json.loads(json.dumps(levels.state())))
    assert other.state() == levels.state()
    for _ in range(4):
        one, two = answered(first, 0.9), answered(again, 0.9)
        assert [s.prompt.number for s in one.everything] == [s.prompt.number for s in two.everything]
        assert levels.note([levels.sums(one)]) == other.note([other.sums(two)])
    with pytest.raises(UserError, match="at level 7, the prompts have 1, 2, 5"):
        other.load({"level": 7, "recent": [], "began": 0})


def test_prompts_without_a_level_are_named(tmp_path: Path):
    records = [record | ({"level": "hard"} if i % 2 else {}) for i, record in enumerate(RECORDS)]
    loader = PromptLoader(prompts(tmp_path, records), prompts=4, seed=3)
    with pytest.raises(UserError, match=r"prompts have no number as 'level' \(.* x hard\)"):
        Levels(Curriculum(), loader)
    with pytest.raises(UserError, match=r"no number as 'grade'.*None"):
        Levels(Curriculum(key="grade"), loader)


def test_without_levels_no_engine_is_started_and_the_run_keeps_its_own_values(tmp_path: Path):
    run = new_run(tmp_path, "stages.rl.answers=null", "stages.rl.engine=transformers", "budget.steps=2")
    said: list[str] = []

    def go_on(*sets: str) -> int:
        view = SimpleNamespace(say=said.append, update=lambda snapshot: None, close=lambda: None)
        return train_run(load_recipe(run / "recipe.yaml", sets), Options(run=run, resume=True, yes=True), view)[0]

    with pytest.raises(UserError, match="prompts have no number as 'level'"):
        go_on("stages.rl.curriculum={bar: 0.5}")
    assert not list((run / "logs").glob("engine-*"))
    assert "taken back, since nothing was saved with it: stages.rl.curriculum" in "\n".join(said)
    assert go_on() == 0
    assert sorted(series(run, "loss")) == [1, 2]


def test_a_killed_run_goes_on_at_its_level_bit_for_bit(tmp_path: Path):
    path = lines(tmp_path / "prompts.jsonl")
    sets = (
        f"data.corpus={{kind: prompts, files: [{path}]}}", "stages.rl.curriculum={bar: 0.01, rounds: 1}",
        "stages.rl.answers=null", "stages.rl.equal_rewards=keep", "budget.steps=8",
    )  # fmt: skip
    mark = tmp_path / "calls"
    stopping = DIGITS.replace("    return", STOP.format(mark=str(mark)) + "    return")
    whole, halted = new_run(tmp_path, *sets), new_run(tmp_path, *sets, reward=stopping)
    assert train_policy(halted) == 3
    (tmp_path / "reward.py").write_text(DIGITS)
    assert train_policy(whole) == 0
    assert train_policy(halted) == 0
    reached = series(whole, "level")
    assert reached[1] == 1
    assert reached[8] > 1
    for name in ("loss", "reward", "level"):
        assert series(halted, name) == series(whole, name), name
    assert rounds(halted) == rounds(whole)


STOP = """    import os, pathlib, signal
    mark = pathlib.Path({mark!r})
    count = int(mark.read_text()) if mark.exists() else 0
    mark.write_text(str(count + 1))
    if count == 70:
        os.kill(os.getppid(), signal.SIGTERM)
"""
"""Stops the run in its fifth round of 16 answers."""
