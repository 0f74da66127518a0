"""A learner's step on made-up answers: what a trial and the rehearsal's rung take of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from runs import CONFIG

from windtunnel.launch import Trial, try_steps
from windtunnel.plan import make_plan
from windtunnel.recipe import Layout, Recipe, load_recipe
from windtunnel.rehearse import climbing
from windtunnel.rehearse.context import Rehearsal
from windtunnel.rig import parse_rig
from windtunnel.rl import made_up_samples, pack


def sets(folder: Path, *more: str) -> tuple[str, ...]:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return (
        f"model.config={folder / 'config.json'}", "model.sequence=56", "stages.rl.prompt_tokens=8", "stages.rl.answer_tokens=16",
        "stages.rl.prompts=4", "stages.rl.samples=4", "stages.rl.compile=false", "stages.rl.micro_batch=2",
        "stages.rl.learning_rate=1e-3", *more,
    )  # fmt: skip


def layout(**changes: int) -> Layout:
    given = {"ranks": 1, "micro_batch": 2, "accumulation": 3, "sequence": 56} | changes
    return Layout(**given, precision="fp32", compile=False, device="cpu", shard="full")


def recipe(folder: Path, *more: str) -> Recipe:
    return load_recipe("rl", sets(folder, *more))


def test_made_up_answers_fill_every_row(tmp_path: Path) -> None:
    stage = recipe(tmp_path).rl
    assert stage is not None
    samples = made_up_samples(stage, layout(), 32, seed=1)
    assert {len(s.prompt.ids) <= 8 and 0 < len(s.tokens) <= 16 for s in samples} == {True}
    assert {s.advantage for s in samples} == {-1.0, 1.0}
    packed = pack(samples, 56, 2, fixed=True)
    assert packed.ids.shape == (6, 56)
    assert (packed.positions == 0).sum() == len(samples) == 6 * 3  # nothing is left of a row


@pytest.mark.parametrize("more", [(), ("stages.rl.reference=true", "stages.rl.kl=0.1", "stages.rl.updates=2")])
def test_a_learners_step_is_tried_without_engines_or_judges(tmp_path: Path, more: tuple[str, ...]) -> None:
    trial = try_steps(recipe(tmp_path, *more), layout(), steps=3, warm_up=1)
    assert trial.failure is None, trial.log
    assert list(trial.phases) == ["forward", "backward", "optimizer"]
    assert min(trial.gradient_norms) > 0
    assert len(trial.losses) == 4
    assert trial.losses[-1] < trial.losses[0]  # answers with an advantage become likelier than the others
    assert (trial.reserved_gib or 0) > 0


def test_ranks_share_a_learners_step(tmp_path: Path) -> None:
    trial = try_steps(recipe(tmp_path), layout(ranks=2), steps=3, warm_up=1)
    assert trial.failure is None, trial.log
    assert trial.losses[-1] < trial.losses[0]


def test_the_rung_holds_a_learners_memory_against_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(climbing, "GATE", 1e9)
    monkeypatch.setattr(climbing, "STEPS", 3)
    # Engines beside and answers ahead are for more than one GPU.
    rehearsal = Rehearsal("rl", sets(tmp_path, "stages.rl.engine=vllm", "stages.rl.overlap=1"), ("cpu",), tmp_path)
    evidence = climbing._steps(rehearsal, parse_rig("cpu"), lambda text: None)
    assert evidence.absent is None
    assert "by 1 learner(s)" in evidence.text
    assert evidence.facts["measured"]["memory"] > 0
    monkeypatch.setattr(climbing, "GATE", -1.0)
    with pytest.raises(climbing.CheckFailed, match="memory above the plan"):
        climbing._judge_learner(make_plan(recipe(tmp_path), parse_rig("cpu")), Trial({}, reserved_gib=1e3, step_seconds=1.0))


@pytest.mark.parametrize("name", ["rl", "sft"])
def test_where_memory_runs_out_the_stage_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(climbing, "try_steps", lambda *_, **__: Trial({}, failure="out of memory", out_of_memory=True))
    monkeypatch.setattr(climbing, "make_plan", lambda *given: planned)
    given = sets(tmp_path) if name == "rl" else (sets(tmp_path)[0], "model.sequence=32")
    made = make_plan(load_recipe(name, given), parse_rig("cpu"))
    planned = replace(made, layout=replace(made.layout, micro_batch=4))
    with pytest.raises(climbing.CheckFailed) as caught:
        climbing._steps(Rehearsal(name, given, ("cpu",), tmp_path), parse_rig("cpu"), lambda text: None)
    assert f"--set stages.{name}.micro_batch=2," in (caught.value.fix or "")
