"""Decoding through the KV cache gives what the whole forward pass gives."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from windtunnel.model import GPT, GPTShape, KVCache, build_model, extend, gpt_shape
from windtunnel.recipe import GPTModel

VOCAB = 29
VARIANTS = {
    "plain": {},
    "grouped queries": {"kv_heads": 2},
    "one key head": {"kv_heads": 1, "value_embeddings": False},
    "windows": {"window": "SL"},
    "swiglu": {"mlp": "swiglu"},
    "no value embeddings": {"value_embeddings": False},
    "all": {"kv_heads": 2, "mlp": "swiglu", "window": "SSL"},
}


def random_model(**changes: object) -> GPT:
    """A small GPT all of whose weights are random: at initialisation the outputs are zero and hide errors."""
    fields: dict[str, object] = {"depth": 4, "aspect": 16, "head_dim": 16, "sequence": 64, **changes}
    shape = gpt_shape(GPTModel.model_validate(fields), VOCAB)
    if "window" in changes:
        # gpt_shape's shortest window is 128 tokens; the windows here have to be shorter than the text.
        letters = shape_letters(shape, str(changes["window"]))
        shape = replace(shape, windows=tuple(7 if letter == "S" else 64 for letter in letters))
    model = build_model(shape, seed=3).eval()
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2:
                weight.normal_(0, 2.0 if "table" in name or "embedding" in name else 1.5 * shape.dim**-0.5, generator=generator)
            else:
                weight.uniform_(0.3, 1.2, generator=generator)
    return model


def shape_letters(shape: GPTShape, pattern: str) -> list[str]:
    return [pattern[i % len(pattern)] for i in range(shape.layers - 1)] + ["L"]


def text(length: int, seed: int) -> torch.Tensor:
    return torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed))


def whole(model: GPT, tokens: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return model(tokens[None])[0]


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_prompt_then_single_tokens_equal_the_whole_pass(variant: str) -> None:
    model, tokens = random_model(**VARIANTS[variant]), text(40, 1)
    expected, cache = whole(model, tokens), KVCache(model, 3)
    slot = [1]
    close(extend(model, tokens[None, :17], slot, cache)[0], expected[16])
    for t in range(17, 40):
        close(extend(model, tokens[None, t : t + 1], slot, cache)[0], expected[t])
    assert cache.lengths == [0, 40, 0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_prompt_in_chunks_equals_the_whole_pass(variant: str) -> None:
    model, tokens = random_model(**VARIANTS[variant]), text(50, 2)
    expected, cache, done = whole(model, tokens), KVCache(model, 1), 0
    for size in (1, 9, 2, 30, 8):
        logits = extend(model, tokens[None, done : done + size], [0], cache)
        done += size
        close(logits[0], expected[done - 1])


@pytest.mark.parametrize("variant", VARIANTS)
def test_slots_of_different_lengths_decode_together(variant: str) -> None:
    model = random_model(**VARIANTS[variant])
    cache = KVCache(model, 4)
    texts = {2: text(45, 3), 0: text(30, 4), 3: text(22, 5)}
    starts = {2: 20, 0: 5, 3: 1}
    expected = {slot: whole(model, tokens) for slot, tokens in texts.items()}
    for slot, tokens in texts.items():
        extend(model, tokens[None, : starts[slot]], [slot], cache)
    order = [2, 0, 3]
    for step in range(20):
        newest = torch.stack([texts[s][starts[s] + step] for s in order])[:, None]
        logits = extend(model, newest, order, cache)
        for row, s in enumerate(order):
            close(logits[row], expected[s][starts[s] + step])


def test_a_reset_slot_forgets() -> None:
    model = random_model(kv_heads=2)
    cache, slot, tokens = KVCache(model, 2), [0], text(12, 7)
    extend(model, text(60, 6)[None], slot, cache)
    cache.reset(0)
    close(extend(model, tokens[None], slot, cache)[0], whole(model, tokens)[-1])


def test_capacity_is_at_most_the_models_context() -> None:
    model = random_model()
    assert KVCache(model, 1, 10_000).capacity == 64
    assert KVCache(model, 1, 16).capacity == 16
    cache, tokens = KVCache(model, 1), text(64, 8)
    close(extend(model, tokens[None], [0], cache)[0], whole(model, tokens)[-1])


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Compute with one thread: several share rows out by their number, and round by it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("slots", [[2, 3, 4], [0, 2, 5], [4, 2], [0, 19]], ids=["side by side", "holes", "turned", "far apart"])
@pytest.mark.parametrize("variant", ["plain", "all"])
def test_slots_wherever_they_lie_give_the_same_bits(variant: str, slots: list[int]) -> None:
    model, given = random_model(**VARIANTS[variant]), [text(12 + 5 * i, i) for i in range(len(slots))]
    found = []
    for places in (list(range(len(slots))), slots):
        cache = KVCache(model, 20)
        for place, tokens in zip(places, given, strict=True):
            extend(model, tokens[None], [place], cache)
        found.append([extend(model, torch.full((len(slots), 1), t), places, cache) for t in range(5)])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
