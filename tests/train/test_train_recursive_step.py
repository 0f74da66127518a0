"""One step of a recursive model: what it reports is what the model does, whatever the micro-batches."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from windtunnel.data import Batch
from windtunnel.model import RecursiveGPT, build_model, derive, recipe_shape
from windtunnel.recipe import Layout, Recipe, load_recipe
from windtunnel.train import MuonAdamW, Ranks
from windtunnel.train.engine import Feed, StepResult
from windtunnel.train.gpt import GPTEngine
from windtunnel.train.telemetry import in_order, refinement, step_readings

PUZZLES, CELLS, DIGITS = 12, 16, 5
SMALL = (
    "model.depth=1", "model.aspect=32", "model.head_dim=16", "model.sequence=16", "data.corpus.box=2", "data.corpus.grade=easy",
    "trm.supervision=3",
)  # fmt: skip


class Given:
    """Batches that are there already, in equal micro-batches."""

    epochs, position, step_sequences, wait_seconds = 0.0, 0, 0, 0.0

    def __init__(self, x: Tensor, y: Tensor, accumulation: int) -> None:
        self.accumulation = accumulation
        self._rows = list(zip(x.chunk(accumulation), y.chunk(accumulation), strict=True))

    def next_batch(self) -> Batch:
        """The next of them."""
        return Batch(*self._rows.pop(0))

    def seek(self, position: int) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def sudoku(*sets: str) -> Recipe:
    return load_recipe("trm-sudoku", [*SMALL, *sets])


def made(recipe: Recipe) -> tuple[RecursiveGPT, MuonAdamW]:
    model = cast(RecursiveGPT, build_model(recipe_shape(recipe, DIGITS), seed=1))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():  # a trained-looking model: the answers differ by step
        for parameter in model.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    assert recipe.trm is not None
    return model, MuonAdamW(model, derive(recipe, DIGITS), clip=recipe.pretrain.optimizer.clip, ema=recipe.trm.ema)


def data(model: RecursiveGPT) -> tuple[Tensor, Tensor]:
    """Half of the answers are what the model says after its second step, so that some samples are wholly right."""
    x = torch.randint(DIGITS, (PUZZLES, CELLS), generator=torch.Generator().manual_seed(0))
    y = torch.randint(1, DIGITS, (PUZZLES, CELLS), generator=torch.Generator().manual_seed(1))
    y[::2] = model.solve_steps(x)[0][1][::2]
    return x, y


def one_step(recipe: Recipe, accumulation: int = 1) -> tuple[StepResult, RecursiveGPT, tuple[Tensor, Tensor, Tensor]]:
    model, optimizer = made(recipe)
    x, y = data(model)
    before = model.step_losses(x, y), *cast(tuple[Tensor, Tensor], model.solve_steps(x))
    layout = Layout(1, PUZZLES // accumulation, accumulation, CELLS, "fp32", False, "cpu")
    feed = Feed(Given(x, y, accumulation), list, DIGITS, np.ones(DIGITS))
    engine = GPTEngine(recipe, layout, Ranks(0, 1, torch.device("cpu"), None), feed, derive(recipe, DIGITS), model, optimizer)
    return engine.step(1, 0.1).result(), model, before


def test_losses_and_the_halting_head_are_what_the_model_says() -> None:
    # One update at the end: until then the weights are those of before.
    result, model, (nats, answers, halting) = one_step(sudoku("trm.updates=once"))
    _, y = data(made(sudoku())[0])
    found = result.supervised
    assert found is not None
    assert found.losses == pytest.approx(nats.double().mean((1, 2)).tolist(), rel=1e-5)
    assert result.loss == found.losses[-1]
    right = (answers == y).all(-1)
    assert 0.3 < float(right[1].float().mean()) < 0.8
    assert found.solved == pytest.approx(right.double().mean(1).tolist())
    assert found.halting is not None
    entropy = torch.nn.functional.binary_cross_entropy_with_logits(halting, right.float())
    assert found.halting[0] == pytest.approx(float(entropy), rel=1e-5)
    assert found.halting[1] == pytest.approx(float(((halting > 0) == right).double().mean()))
    values = step_readings(result)
    assert values["solved"] == found.solved[-1]
    assert values["halting_loss"] == found.halting[0]
    assert model.training


@pytest.mark.parametrize("updates", ["once", "each"])
def test_micro_batches_change_neither_results_nor_weights(updates: str) -> None:
    recipe = sudoku(f"trm.updates={updates}", "trm.improvement_reward=0")
    whole, model, _ = one_step(recipe)
    parts, other, _ = one_step(recipe, accumulation=4)
    assert step_readings(parts) == pytest.approx(step_readings(whole), rel=1e-4, abs=1e-6)
    for (name, one), two in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4, msg=name)


def test_once_has_one_norm_and_each_has_one_for_every_supervision_step() -> None:
    once, each = (one_step(sudoku(f"trm.updates={updates}"))[0] for updates in ("once", "each"))
    assert once.supervised is not None
    assert each.supervised is not None
    assert once.supervised.gradient_norms == ()
    norms = each.supervised.gradient_norms
    assert len(norms) == 3
    assert each.gradient_norm == pytest.approx(math.sqrt(sum(n * n for n in norms) / 3))


def test_refinement_and_order() -> None:
    assert refinement((4.0, 3.5, 3.0)) == 25.0
    assert refinement((0.0, 0.0)) == 0.0
    assert in_order((3.0, 2.0, 1.0))
    assert not in_order((3.0, 3.0, 1.0))
    assert not in_order((3.0, math.nan))
