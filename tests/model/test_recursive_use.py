"""Recursive GPTs in use: the cache under recursion, exported weights, another number of supervision steps."""

import dataclasses
from pathlib import Path

import pytest
import torch
from recursive_reference import random_model, recursive_shape
from torch import Tensor

from windtunnel.checkpoint import cast_tensors, write_export
from windtunnel.model import (
    GPT,
    KVCache,
    RecursiveGPT,
    build_model,
    extend,
    load_weights,
    use_supervision,
)  # fmt: skip
from windtunnel.model.shape import GPTShape, RecursionShape
from windtunnel.recipe import UserError

R = RecursionShape
VARIANTS: dict[str, tuple[R, dict[str, object]]] = {
    "layerwise": (R("layerwise", 2, 2, 3), {"mlp": "swiglu", "kv_heads": 2}),
    "two latents": (R("two_latent", 2, 1, 3), {"mlp": "swiglu"}),
    "looped": (R("looped", 3, 1, 2), {"value_embeddings": True, "kv_heads": 1}),
    "last cycle": (R("layerwise", 1, 3, 2, "last"), {}),
}


def model_of(variant: str) -> RecursiveGPT:
    recursion, changes = VARIANTS[variant]
    model = random_model(recursive_shape(recursion=recursion, **{"sequence": 40, **changes}), torch.float64).eval()
    assert isinstance(model, RecursiveGPT)
    return model


def text(length: int, seed: int) -> Tensor:
    return torch.randint(0, 29, (length,), generator=torch.Generator().manual_seed(seed))


def whole(model: GPT, tokens: Tensor) -> Tensor:
    with torch.inference_mode():
        return model(tokens[None])[0]


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("steps", [None, 1, 5])
@pytest.mark.parametrize("variant", VARIANTS)
def test_token_by_token_equals_the_whole_pass(variant: str, steps: int | None) -> None:
    model, tokens = model_of(variant), text(30, 1)
    use_supervision(model, steps)
    expected, cache, done = whole(model, tokens), KVCache(model, 2), 0
    for size in (9, 1, 1, 12, 1, 1, 5):
        logits = extend(model, tokens[None, done : done + size], [1], cache)
        done += size
        close(logits[0], expected[done - 1])
    assert cache.lengths == [0, 30]


@pytest.mark.parametrize("variant", VARIANTS)
def test_slots_of_different_lengths_decode_together(variant: str) -> None:
    model = model_of(variant)
    cache = KVCache(model, 4)
    texts = {2: text(35, 3), 0: text(25, 4), 3: text(18, 5)}
    starts = {2: 20, 0: 5, 3: 1}
    expected = {slot: whole(model, tokens) for slot, tokens in texts.items()}
    for slot, tokens in texts.items():
        extend(model, tokens[None, : starts[slot]], [slot], cache)
    order = [2, 0, 3]
    for step in range(12):
        newest = torch.stack([texts[s][starts[s] + step] for s in order])[:, None]
        logits = extend(model, newest, order, cache)
        for row, s in enumerate(order):
            close(logits[row], expected[s][starts[s] + step])


def test_a_cache_keeps_its_number_of_steps() -> None:
    model, tokens = model_of("layerwise"), text(6, 2)
    cache = KVCache(model, 1)
    expected = whole(model, tokens)[-1]
    extend(model, tokens[None, :5], [0], cache)
    use_supervision(model, 7)
    close(extend(model, tokens[None, 5:], [0], cache)[0], expected)


def test_a_model_that_is_not_causal_has_no_cache() -> None:
    model = build_model(recursive_shape(recursion=R("two_latent", 1, 1, 1), causal=False))
    with pytest.raises(UserError, match="not causal"):
        KVCache(model, 1)


def export(folder: Path, model: GPT, dtype: str = "fp32") -> None:
    """Write weights and shape as `windtunnel export` does."""
    tensors = cast_tensors(((name, p.detach()) for name, p in model.named_parameters()), dtype)
    write_export(folder, tensors, config={"shape.json": dataclasses.asdict(model.shape)})


@pytest.mark.parametrize("variant", VARIANTS)
def test_exported_weights_give_the_same_logits(variant: str, tmp_path: Path) -> None:
    model = model_of(variant).float()
    model.compute = torch.float32
    export(tmp_path, model)
    again = load_weights(tmp_path)
    assert isinstance(again, RecursiveGPT)
    assert again.shape == model.shape
    model.cos, model.sin = again.cos, again.sin
    tokens = text(30, 6)
    assert torch.equal(whole(again, tokens), whole(model, tokens))


def test_a_recipes_steps_for_use_travel_with_the_weights(tmp_path: Path) -> None:
    shape: GPTShape = recursive_shape(recursion=R("layerwise", 1, 1, 2, inference=6), causal=False)
    model = build_model(shape)
    assert isinstance(model, RecursiveGPT)
    assert model.supervision == 2
    export(tmp_path, model)
    again = load_weights(tmp_path)
    assert isinstance(again, RecursiveGPT)
    assert again.supervision == 6
    assert use_supervision(again, None) == "6 supervision steps (trained with 2)"
    assert use_supervision(again, 2) == "2 supervision steps"
    assert again.supervision == 2
    with pytest.raises(UserError, match="expected 1 to"):
        use_supervision(again, 0)
    with pytest.raises(UserError, match="does not recurse"):
        use_supervision(build_model(recursive_shape()), 4)
    assert use_supervision(build_model(recursive_shape()), None) is None
