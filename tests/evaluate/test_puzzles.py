"""Puzzles scored: by grade and supervision step, beyond the trained steps, as the halting head decides; real runs of 4x4."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from windtunnel.checkpoint import CheckpointStore, Facts, save_now
from windtunnel.data import PreparedData, PuzzleFile, prepare
from windtunnel.data.sudoku_solve import solve_grids
from windtunnel.evaluate import evaluate_run
from windtunnel.evaluate.puzzles import puzzle_report
from windtunnel.model import build_model, recipe_shape
from windtunnel.recipe import Recipe, load_recipe
from windtunnel.run import RunFolder

SMALL = [
    "data.corpus.box=2", "data.corpus.grade=easy", "data.corpus.puzzles=400", "data.validation=0.2", "model.sequence=16",
    "model.aspect=32", "model.head_dim=32", "trm.supervision=2", "budget.hours=null", "budget.steps=4",
]  # fmt: skip


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def hard(cache: Path) -> PreparedData:
    return prepare(load_recipe("trm-sudoku", ["data.corpus.puzzles=60", "data.validation=0.4"]), cache)


class Solver(nn.Module):
    """Stands in for a model: blanks are 1 after supervision step 0 and right from step `solves` on, by the search of
    the data room. The halting head says so from step `halts` on, and always of the first puzzle of a batch."""

    def __init__(self, recipe: Recipe, vocab: int, solves: int, halts: int) -> None:
        super().__init__()
        self.shape = recipe_shape(recipe, vocab)
        self.head = nn.Linear(1, 1)
        self.supervision, self._solves, self._halts = 4, solves, halts

    def solve_steps(self, x: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        solution = torch.from_numpy(solve_grids(x.numpy().astype(np.uint8)).grids.astype(np.int64))
        wrong = torch.where(x == 0, 1, x)
        tokens = torch.stack([solution if i >= self._solves else wrong for i in range(steps)])
        logits = torch.tensor([[1.0 if i >= self._halts or j == 0 else -1.0 for j in range(len(x))] for i in range(steps)])
        return tokens, logits


def scored(hard: PreparedData, solves: int, halts: int) -> Any:
    recipe = load_recipe("trm-sudoku", ["trm.supervision=4"])
    model: Any = Solver(recipe, hard.tokenizer.vocab, solves, halts)
    return puzzle_report(model, hard, most=1000, others=12)


def test_exact_solutions_are_counted_by_grade_and_supervision_step(hard: PreparedData) -> None:
    assert isinstance(hard.validation, PuzzleFile)
    report = scored(hard, solves=2, halts=2)
    own = report.solved[0]
    assert own.kind == "hard"
    assert own.held_out
    assert own.exact[0].n == hard.validation.puzzles
    assert [share.value for share in own.exact] == [0, 0, 1, 1, 1, 1, 1, 1]  # 4 steps as trained, 8 in all
    # After step 0 every blank is 1: about a ninth of them is right.
    assert 0.05 < own.cells[0] < 0.2
    assert own.cells[2] == 1.0
    assert report.exact.value == 1.0
    kinds = {kind.kind: kind for kind in report.solved}
    assert {"easy", "medium"} <= set(kinds)
    assert not kinds["easy"].held_out
    guesses = [kind for name, kind in kinds.items() if "guess" in name]
    assert sum(kind.exact[0].n for kind in guesses) == own.exact[0].n
    text = json.dumps(report.to_json())
    assert json.loads(text)["exact"]["share"] == 1.0
    assert any("by supervision step" in name for name, _ in report.rows())


def test_steps_beyond_training_do_not_count_as_the_result(hard: PreparedData) -> None:
    report = scored(hard, solves=5, halts=0)
    assert report.exact.value == 0.0
    assert report.solved[0].exact[5].value == 1.0


def test_halting_is_judged_where_it_stops(hard: PreparedData) -> None:
    n = scored(hard, solves=2, halts=2).solved[0].exact[0].n
    good = scored(hard, solves=2, halts=2).halting
    # The first puzzle stops at once and is wrong there; the others stop after three steps and are right.
    assert good.exact.right == n - 1
    assert good.steps == pytest.approx((1 + 3 * (n - 1)) / n)
    assert good.told.right == 4 * n - 2
    never = scored(hard, solves=2, halts=9).halting
    assert never.steps == pytest.approx((1 + 4 * (n - 1)) / n)
    assert never.exact.right == n - 1
    early = scored(hard, solves=2, halts=0).halting
    assert early.exact.right == 0
    assert early.steps == 1.0


@pytest.mark.parametrize("keys", [[], ["trm=null"], ["trm.halting=false", "trm.scheme=looped", "trm.loops=1"]])
def test_runs_of_puzzle_models_are_evaluated(keys: list[str], cache: Path, tmp_path: Path) -> None:
    recipe = load_recipe("trm-sudoku", [*SMALL, *keys])
    data = prepare(recipe, cache)
    shape = recipe_shape(recipe, data.tokenizer.vocab)
    model = build_model(shape, seed=1)
    with RunFolder.create(tmp_path / "runs", recipe, rig={}) as run:
        data.tokenizer.save(run.tokenizer_path)
        save_now(CheckpointStore(run.checkpoints_dir), {"model": dict(model.named_parameters())}, Facts(1, {}, 1.0))
        path = run.path
    report = evaluate_run(path, prepared=data)
    assert report.puzzles is not None
    assert report.exact_match is None
    assert report.samples == ()
    # Blanks and four digits are all the same to a model that has learned nothing.
    assert report.validation.loss == pytest.approx(np.log(5), abs=0.1)
    assert report.validation.tokens == data.validation.count
    assert len(report.puzzles.solved[0].exact) == (1 if recipe.trm is None else 4)
    assert (report.puzzles.halting is None) == (recipe.trm is None or not recipe.trm.halting)
    written = json.loads((path / "evaluation.json").read_text())
    assert written["puzzles"]["exact"]["n"] == len(data.validation.content)  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_4x4_sudoku_is_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the command, to over 90 % of held-out puzzles; about a minute on two idle cores."""

    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path / "cache"))
    keys = [
        *SMALL, "data.corpus.puzzles=10000", "data.validation=0.03", "trm.supervision=4", "trm.updates=each", "budget.steps=130",
        "stages.pretrain.batch_tokens=1024", "stages.pretrain.optimizer.matrix_lr=0.005",
    ]  # fmt: skip
    sets = [part for key in keys for part in ("--set", key)]
    command = [sys.executable, "-m", "windtunnel", "train", "trm-sudoku", "--root", str(tmp_path / "runs"), "--yes", *sets]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    report = evaluate_run(run)
    assert report.puzzles is not None
    assert report.puzzles.exact.value > 0.9
    assert report.puzzles.halting is not None
    assert report.puzzles.halting.told.value > 0.9
