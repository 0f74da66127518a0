"""Held-out losses in units: totals as the evaluation's, whole documents, puzzles solved as the evaluation counts them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from random_gpts import random_gpt

from windtunnel.data import PreparedData, ValidationBatches, prepare
from windtunnel.evaluate import measure, validation_loss
from windtunnel.evaluate.held_out import held_out_units
from windtunnel.evaluate.puzzles import puzzle_report
from windtunnel.recipe import Recipe, load_recipe

TEXT = {
    "name": "text",
    "model": {"depth": 1, "aspect": 32, "head_dim": 16, "sequence": 32, "value_embeddings": False},
    "trm": {"loops": 1, "supervision": 3, "preset": "honest"},
    "data": {"corpus": {"kind": "arithmetic", "documents": 4000, "digits": 2}, "validation": 0.2},
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, PreparedData]:
    recipe = Recipe.model_validate(TEXT)
    return recipe, prepare(recipe, cache=tmp_path_factory.mktemp("text"))


@pytest.mark.parametrize("recursive", [True, False])
@pytest.mark.parametrize("limit", [1000, 10**9])
def test_totals_are_those_of_the_evaluation(text: tuple[Recipe, PreparedData], limit: int, recursive: bool) -> None:
    recipe, data = text
    recipe = recipe if recursive else recipe.model_copy(update={"trm": None})
    model = random_gpt(recipe, data)
    units = held_out_units(data, 32, limit)
    found = measure(model, data, units)
    batches = ValidationBatches(data.validation, sequence=32, micro_batch=7, limit=limit)
    expected = validation_loss(model, batches, data.tokenizer.token_bytes(), "cpu")
    assert found.targets.sum() == expected.tokens
    assert found.bytes.sum() == expected.bytes
    assert found.loss == pytest.approx(expected.loss, rel=1e-6)
    assert found.bits_per_byte == pytest.approx(expected.bits_per_byte, rel=1e-6)
    assert found.losses == pytest.approx([step.loss for step in expected.steps] or [expected.loss], rel=1e-6)


def test_a_unit_holds_whole_documents(text: tuple[Recipe, PreparedData]) -> None:
    _, data = text
    units = held_out_units(data, 32, 10**9)
    tokens = np.asarray(data.validation.array)[1 : len(units.of) + 1]
    assert units.count > 100
    assert np.all(np.diff(units.of) >= 0)
    # Where a unit begins, a document does.
    assert np.all(tokens[1:][np.diff(units.of) > 0] == data.tokenizer.bos)
    few = held_out_units(data, 32, 200)
    assert "stretches of 32 tokens" in few.words
    assert few.count == 7


def test_puzzles_are_units_and_solved_as_the_evaluation_says(tmp_path: Path) -> None:
    sets = [
        "data.corpus.box=2", "data.corpus.grade=easy", "data.corpus.puzzles=120", "model.sequence=16", "model.head_dim=16",
        "model.aspect=16", "trm.supervision=2", "trm.ema=null",
    ]  # fmt: skip
    recipe = load_recipe("trm-sudoku", sets)
    data = prepare(recipe, cache=tmp_path)
    model = random_gpt(recipe, data)
    blank = measure(model, data, held_out_units(data, 16, 10**9))
    # A model that copies the answer cannot be had at random: teach it a little.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    (x, y), *_ = list(ValidationBatches(data.validation, sequence=16, micro_batch=4))
    for _ in range(40):
        optimizer.zero_grad(set_to_none=True)
        model(x, y).backward()
        optimizer.step()
    units = held_out_units(data, 16, 10**9)
    found = measure(model, data, units)
    assert units.words == "puzzles"
    assert found.solved is not None
    assert found.bits_per_byte is None
    exact = puzzle_report(model, data, most=10**6, others=0).exact
    assert (int(found.solved.sum()), len(found.solved)) == (exact.right, exact.n)
    assert exact.right > 0
    assert found.loss < blank.loss
