"""Clipping and averaging in the optimizer: what they do, and that without them nothing changes."""

from __future__ import annotations

import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from waiting import HANG

from windtunnel.checkpoint import CheckpointStore, Facts, Slice, SpoiledWeights
from windtunnel.model import GPT, build_model, derive, gpt_shape
from windtunnel.recipe import Layout, Recipe, load_recipe
from windtunnel.train import MuonAdamW, Ranks, Scalars
from windtunnel.train.checkpoints import make_saver
from windtunnel.train.engine import Feed
from windtunnel.train.gpt import GPTEngine
from windtunnel.train.muon import orthogonalise

VOCAB = 30
NOW = Scalars(1.0, 0.9, 0.1)


def tiny() -> Recipe:
    return load_recipe(
        "charlm", ["model.depth=2", "model.aspect=16", "model.head_dim=16", "model.sequence=16", "budget.steps=10"]
    )


def made(**options: float) -> tuple[GPT, MuonAdamW]:
    recipe = tiny()
    model = build_model(gpt_shape(recipe.gpt, VOCAB), seed=3)
    return model, MuonAdamW(model, derive(recipe, VOCAB), **options)


def backward(model: GPT, step: int, scale: float = 1.0) -> None:
    tokens = torch.randint(VOCAB, (4, 17), generator=torch.Generator().manual_seed(step))
    (scale * model(tokens[:, :-1], tokens[:, 1:])).backward()


class NoBatches:
    """The steps here are taken by hand."""

    accumulation, epochs, position, step_sequences, wait_seconds = 1, 0.0, 0, 0, 0.0

    def seek(self, position: int) -> None:
        self.position = position


def engine_of(model: GPT, optimizer: MuonAdamW) -> GPTEngine:
    layout, ranks = Layout(1, 4, 1, 16, "fp32", False, "cpu"), Ranks(0, 1, torch.device("cpu"), None)
    feed = Feed(NoBatches(), list, VOCAB, np.ones(VOCAB))  # type: ignore[arg-type]
    return GPTEngine(tiny(), layout, ranks, feed, derive(tiny(), VOCAB), model, optimizer)


def weights(model: GPT) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def trained(steps: int = 5, scale: float = 1.0, **options: float) -> dict[str, torch.Tensor]:
    model, optimizer = made(**options)
    for step in range(steps):
        backward(model, step, scale)
        optimizer.step(NOW)
    return weights(model)


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    for name in a:
        assert torch.equal(a[name], b[name]), name


def test_a_limit_that_is_not_reached_changes_no_bit() -> None:
    assert_same(trained(), trained(clip=1e9))


def test_clipped_gradients_are_torchs() -> None:
    model, optimizer = made(clip=0.05)
    backward(model, 0)
    reference = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    free = [torch.nn.Parameter(torch.zeros_like(g)) for g in reference.values()]
    for parameter, gradient in zip(free, reference.values(), strict=True):
        parameter.grad = gradient.clone()
    before = torch.nn.utils.clip_grad_norm_(free, 0.05)
    assert float(before) > 0.1
    square = optimizer._clipped([None] * len(optimizer.groups), 0.05)
    assert math.sqrt(float(square)) == pytest.approx(float(before), rel=1e-5)
    for parameter, expected in zip(model.parameters(), free, strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-4, atol=1e-9)


def test_the_norm_that_is_returned_is_that_before_clipping() -> None:
    norms = []
    for clip in (None, 1e-3):
        model, optimizer = made(**({} if clip is None else {"clip": clip}))
        backward(model, 0)
        norms.append(math.sqrt(float(optimizer.step(NOW))))
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)
    assert norms[0] > 0.1


def test_a_gradient_a_thousand_times_too_large_becomes_as_large_as_the_limit() -> None:
    model, optimizer = made(clip=0.01)
    backward(model, 0, scale=1000.0)
    optimizer._clipped([None] * len(optimizer.groups), 0.01)
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    assert float(norm) == pytest.approx(0.01, rel=1e-4)


def test_averaging_leaves_the_training_as_it_is() -> None:
    assert_same(trained(), trained(ema=0.9))


def test_the_average_is_the_recurrence_written_out() -> None:
    model, optimizer = made(ema=0.5)
    expected = weights(model)
    for step in range(12):
        backward(model, step)
        optimizer.step(NOW)
        updates = step + 1
        decay = min(0.5, (1 + updates) / (10 + updates))
        expected = {name: decay * expected[name] + (1 - decay) * now for name, now in weights(model).items()}
    raw = weights(model)
    with optimizer.averaged():
        averaged = weights(model)
    for name in raw:
        torch.testing.assert_close(averaged[name], expected[name], rtol=1e-5, atol=1e-6)
    assert any(not torch.equal(averaged[name], raw[name]) for name in raw)
    assert_same(raw, weights(model))


def test_an_average_of_few_updates_is_not_the_beginning() -> None:
    model, optimizer = made(ema=0.9999)
    start = weights(model)["head.weight"]
    for step in range(50):
        backward(model, step)
        optimizer.step(NOW)
    end = weights(model)["head.weight"]
    with optimizer.averaged():
        average = weights(model)["head.weight"]
    assert (average - end).norm() < 0.5 * (start - end).norm()


def test_the_state_has_the_average_as_the_model_and_the_raw_weights_among_the_states() -> None:
    model, optimizer = made(ema=0.9)
    for step in range(3):
        backward(model, step)
        optimizer.step(NOW)
    found = {name: part for name, part in optimizer.state_dict().items() if isinstance(part, Slice)}
    raw = weights(model)
    with optimizer.averaged():
        averaged = weights(model)
    # While they are swapped the memory of the average holds the raw weights: read it after.
    for name, parameter in raw.items():
        assert torch.equal(found[f"model.{name}"].local.view(parameter.shape), averaged[name]), name
        assert torch.equal(found[f"optimizer.raw.{name}"].local.view(parameter.shape), parameter), name


@pytest.mark.parametrize("spoil", ["raw", "average"])
def test_weights_that_are_not_finite_are_never_saved(spoil: str, tmp_path: Path) -> None:
    model, optimizer = made(ema=0.9)
    engine, ranks = engine_of(model, optimizer), Ranks(0, 1, torch.device("cpu"), None)
    saver = make_saver(engine, CheckpointStore(tmp_path), ranks)
    saver.save(Facts(1))
    assert saver.wait() is not None
    with torch.no_grad():
        if spoil == "raw":
            model.head.weight[0, 0] = math.nan
        else:
            with optimizer.averaged():
                model.head.weight[0, 0] = math.inf
    saver.save(Facts(2))
    with pytest.raises(SpoiledWeights):
        saver.wait()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


@pytest.mark.parametrize("ema", [None, 0.9])
def test_a_state_is_taken_over_whatever_memory_it_lies_in(ema: float | None) -> None:
    model, optimizer = made(ema=ema)
    for step in range(3):
        backward(model, step)
        optimizer.step(NOW)
    engine, other = engine_of(model, optimizer), engine_of(*made(ema=ema))
    other.load_state_dict(engine.state_dict())
    for each in (engine, other):
        backward(each.model, 7)
        each.optimizer.step(NOW)
    assert_same(weights(engine.model), weights(other.model))
    with engine.optimizer.averaged(), other.optimizer.averaged():
        assert_same(weights(engine.model), weights(other.model))


def test_starting_over_forgets_states_and_average() -> None:
    model, optimizer = made(ema=0.9, clip=1.0)
    for step in range(3):
        backward(model, step)
        optimizer.step(NOW)
    model.initialise(3)
    optimizer.start_over()
    for step in range(5):
        backward(model, step)
        optimizer.step(NOW)
    assert_same(weights(model), trained(ema=0.9, clip=1.0))
    with optimizer.averaged():
        again = weights(model)
    fresh, other = made(ema=0.9, clip=1.0)
    for step in range(5):
        backward(fresh, step)
        other.step(NOW)
    with other.averaged():
        assert_same(again, weights(fresh))


def test_norms_grow_with_the_gradient() -> None:
    norms = []
    for scale in (1.0, 2.0, 4.0):
        model, optimizer = made()
        backward(model, 0, scale)
        norms.append(math.sqrt(float(optimizer.step(NOW))))
    assert all(b == pytest.approx(2 * a, rel=1e-5) for a, b in pairwise(norms))


LIGHT = """
import sys, torch
from windtunnel.model import build_model, derive, recipe_shape
from windtunnel.recipe import load_recipe
from windtunnel.train import MuonAdamW, Scalars
recipe = load_recipe("trm-sudoku", ["model.aspect=32", "model.head_dim=32"])
model = build_model(recipe_shape(recipe, 10))
x = torch.ones(1, 81, dtype=torch.long)
model(x, x).backward()
MuonAdamW(model, derive(recipe, 10)).step(Scalars(1.0, 0.9, 0.1))
print(*({"torch._dynamo", "sympy"} & set(sys.modules)))
"""


def test_a_step_on_the_cpu_does_not_wait_for_the_compiler_to_be_imported() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, timeout=HANG, check=True)
    assert not done.stdout.strip()


def test_compiled_and_plain_updates_agree() -> None:
    x = torch.randn(2, 12, 8, generator=torch.Generator().manual_seed(1))
    # Nothing is made into kernels: what counts is which operators are traced.
    compiled = torch.compile(orthogonalise, backend="aot_eager", dynamic=False, fullgraph=True)(x)
    torch.testing.assert_close(compiled, orthogonalise(x))
