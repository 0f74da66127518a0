"""Parameters, FLOPs and cache bytes of recursive GPTs: arithmetic against what models really hold and do."""

from dataclasses import replace

import pytest
import torch
from random_models import tokens
from recursive_reference import random_model, recursive_shape
from torch.nn.attention import SDPBackend
from torch.utils.flop_counter import FlopCounterMode

from windtunnel.model import KVCache, Objective, RecursiveGPT, attention, recipe_shape, tables, train_supervised
from windtunnel.model.shape import GPTShape, RecursionShape
from windtunnel.recipe import UserError, load_recipe

R = RecursionShape
SHAPES: dict[str, tuple[R | None, dict[str, object]]] = {
    "plain": (None, {"value_embeddings": True}),
    "layerwise": (R("layerwise", 2, 1, 3), {"mlp": "swiglu"}),
    "layerwise, last cycle": (R("layerwise", 1, 3, 2, "last"), {"kv_heads": 2}),
    "two latents": (R("two_latent", 3, 1, 2), {"mlp": "swiglu", "causal": False}),
    "two latents, last cycle": (R("two_latent", 2, 3, 2, "last"), {}),
    "looped": (R("looped", 2, 2, 2), {"value_embeddings": True}),
    "looped, last cycle": (R("looped", 2, 2, 2, "last"), {}),
}


def shape_of(name: str) -> GPTShape:
    recursion, changes = SHAPES[name]
    # The head is as wide as the vocabulary, so that padding is not counted differently.
    return recursive_shape(vocab=64, recursion=recursion, aspect=32, head_dim=16, sequence=32, **changes)


@pytest.mark.parametrize("name", SHAPES)
def test_flops_are_those_that_a_training_pass_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = shape_of(name)
    # Fused attention computes its scores again on the way back, which no convention counts.
    monkeypatch.setattr(attention, "BACKENDS", [SDPBackend.MATH])
    # Small tables sum their gradients by a product with a one-hot matrix.
    monkeypatch.setattr(tables, "ONE_HOT_ROWS", 0)
    model = random_model(shape, torch.float32)
    x, y = tokens(shape, 2)
    with FlopCounterMode(display=False) as counter:
        if isinstance(model, RecursiveGPT):
            count = model.recursion.supervision
            train_supervised(model, [(x, y)], Objective(tuple([1 / count] * count), 0.0, 0, "once"), scale=1.0)
        else:
            model(x, y).backward()
    counted = counter.get_total_flops()
    assert counted == pytest.approx(shape.flops_per_token * x.numel(), rel=1e-9)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x)
    assert counter.get_total_flops() == pytest.approx(shape.forward_flops_per_token * x.numel(), rel=1e-9)


@pytest.mark.parametrize("name", SHAPES)
def test_parameters_and_applications(name: str) -> None:
    shape = shape_of(name)
    model = random_model(shape, torch.float32)
    assert sum(p.numel() for p in model.parameters()) == shape.parameters
    applied = 0

    def count(*_: object) -> None:
        nonlocal applied
        applied += 1

    for block in model.layers():
        block.mlp.register_forward_hook(count)
    model(tokens(shape)[0])
    assert applied == shape.applications


@pytest.mark.parametrize("name", [n for n, (_, changes) in SHAPES.items() if changes.get("causal", True)])
def test_cache_is_as_large_as_the_arithmetic_says(name: str) -> None:
    shape = shape_of(name)
    cache = KVCache(random_model(shape, torch.float32), slots=3, capacity=10)
    held = sum(t.numel() * t.element_size() for t in (cache.keys, cache.values))
    assert held == 3 * 10 * shape.kv_bytes_per_token(4)


def test_recursion_once_counts_as_the_plain_gpt() -> None:
    plain = recursive_shape()
    looped = replace(plain, recursion=R("looped", 1, 1, 1))
    for number in ("parameters", "flops_per_token", "forward_flops_per_token", "applications"):
        assert getattr(looped, number) == getattr(plain, number)
    assert looped.kv_bytes_per_token() == plain.kv_bytes_per_token()


def test_shape_of_a_recipe_with_recursion() -> None:
    changes = ["model.depth=4", "trm.loops=3", "trm.cycles=2", "trm.supervision=5", "model.value_embeddings=false"]
    recipe = load_recipe("charlm", changes)
    shape = recipe_shape(recipe, 100)
    assert shape.recursion == R("layerwise", 3, 2, 5)
    assert shape.applications == 4 * 2 * 4 * 5
    assert shape.with_supervision(7).applications == 4 * 2 * 4 * 7
    assert shape.with_supervision(None) is shape
    with pytest.raises(UserError, match="does not recurse"):
        recursive_shape().with_supervision(2)


def test_knobs_of_the_block() -> None:
    recipe = load_recipe("charlm", ["model.depth=4", "model.mlp=swiglu", "model.mlp_ratio=4", "model.qk_gain=1.0"])
    shape = recipe_shape(recipe, 100)
    assert (shape.hidden, shape.qk_gain) == (4 * shape.dim, 1.0)
    with pytest.raises(UserError, match="sliding windows"):
        recursive_shape(causal=False, window="SL")
