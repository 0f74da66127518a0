"""Invariants: a dumped recipe loads as the same recipe, units print as they parse, scale models keep structure."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.recipe import (
    Every,
    Recipe,
    dump_recipe,
    load_recipe,
    parse_count,
    parse_dollars,
    parse_every,
    parse_hours,
    scale_model,
    validate,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
POSITIVE = st.floats(min_value=1e-9, max_value=1e9)
COUNT = st.integers(min_value=10, max_value=10**13)
EVERY = st.one_of(st.integers(1, 10**9).map(lambda n: Every(steps=n)), POSITIVE.map(lambda s: Every(seconds=s)))
CORPUS = st.one_of(
    st.fixed_dictionaries(
        {"kind": st.just("text"), "files": st.lists(TEXT, min_size=1, max_size=3), "separator": st.none() | TEXT}
    ),
    st.fixed_dictionaries({"kind": st.just("arithmetic"), "documents": COUNT, "decimals": st.integers(0, 6)}),
    st.fixed_dictionaries({"kind": st.just("stdlib"), "megabytes": POSITIVE}),
)
TOKENIZER = st.one_of(
    st.just({"kind": "character"}), st.fixed_dictionaries({"kind": st.just("bpe"), "vocab_size": st.integers(257, 100_000)})
)


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    heads = draw(st.integers(1, 8))
    data = {
        "name": draw(st.from_regex(r"\A[a-z][a-z0-9_-]{0,10}\Z")),
        "description": draw(TEXT | st.sampled_from(["1e3", "null", "0x10", "yes", "2024-01-02", "~", "- a", "# no"])),
        "seed": draw(st.integers(0, 2**32 - 1)),
        "model": {
            "depth": draw(st.just("auto") | st.integers(1, 256)),
            "kv_heads": draw(st.none() | st.just(heads)),
            "mlp": draw(st.sampled_from(["relu2", "swiglu"])),
            "window": draw(st.from_regex(r"\A[SL]{1,4}\Z")),
            "softcap": draw(POSITIVE),
            "value_embeddings": draw(st.booleans()),
        },
        "data": {"corpus": draw(CORPUS), "tokenizer": draw(TOKENIZER)},
        "stages": {
            "pretrain": {"optimizer": {"matrix_lr": draw(st.none() | POSITIVE)}, "validate_every": draw(EVERY)},
            "evaluate": {"prompts": draw(st.lists(TEXT, max_size=3))},
        },
        "budget": {"dollars": draw(st.none() | POSITIVE), "hours": draw(st.none() | POSITIVE), "tokens": draw(st.none() | COUNT)},
        "checkpoints": {"every": draw(EVERY)},
    }
    return validate(data, "generated")


@given(recipes())
def test_dump_then_load_is_the_same_recipe(recipe: Recipe) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.yaml"
        path.write_text(dump_recipe(recipe), encoding="utf-8", newline="")
        assert load_recipe(path) == recipe


@given(EVERY)
def test_every_prints_as_it_parses(every: Every) -> None:
    assert parse_every(str(every)) == every


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_count, "350M", 350_000_000),
        (parse_count, "1.5B tokens", 1_500_000_000),
        (parse_count, "524,288", 524_288),
        (parse_count, "2_000 tokens", 2000),
        (parse_count, 1e6, 1_000_000),
        (parse_hours, "90 min", 1.5),
        (parse_hours, "1 day", 24.0),
        (parse_hours, 2, 2.0),
        (parse_dollars, "$1,250.50", 1250.5),
        (parse_dollars, "40 USD", 40.0),
        (parse_every, "250 steps", Every(steps=250)),
        (parse_every, "1.5 h", Every(seconds=5400.0)),
    ],
)
def test_units(parse, text, value) -> None:
    assert parse(text) == value


@pytest.mark.parametrize("parse", [parse_count, parse_hours, parse_dollars, parse_every])
@pytest.mark.parametrize("text", ["", "-5", "five", "5 furlongs", True, None, [], "nan", "1e999"])
def test_units_refuse_everything_else(parse, text) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse(text)


@given(recipes())
def test_scale_model_is_small_valid_and_keeps_the_structure(recipe: Recipe) -> None:
    small = scale_model(recipe, steps=60)
    assert validate(small.model_dump(mode="json"), "small") == small
    assert small.budget.steps == 60
    assert (small.budget.dollars, small.budget.hours, small.budget.tokens, small.budget.epochs) == (None,) * 4
    assert small.model.depth == 3
    assert small.model.sequence == 128
    for kept in ("mlp", "window", "softcap", "value_embeddings"):
        assert getattr(small.model, kept) == getattr(recipe.model, kept)
    assert (small.model.kv_heads is None) == (recipe.model.kv_heads is None)
    assert small.data.corpus.kind == recipe.data.corpus.kind
    assert small.data.tokenizer.kind == recipe.data.tokenizer.kind
    assert small.pretrain.precision == recipe.pretrain.precision
    assert small.bands == recipe.bands
    assert small.checkpoints.every.steps is not None
    assert small.checkpoints.every.steps < 60
