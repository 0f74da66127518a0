"""Hyper-parameters follow from depth and batch by rules that were measured."""

from __future__ import annotations

import pytest

from windtunnel.model import derive
from windtunnel.recipe import load_recipe


def rates(recipe: str, tokens: int, *keys: str) -> dict[str, float]:
    loaded = load_recipe(recipe, [*keys, f"stages.pretrain.batch_tokens={tokens}"])
    return {name: value for name, value, _ in derive(loaded, 32).rows()}


def test_muons_rate_is_the_same_for_every_batch_and_those_of_adam_fall_with_its_root() -> None:
    shape = "model.depth=8", "model.sequence=256"
    small, large = rates("charlm", 2**13, *shape), rates("charlm", 2**19, *shape)
    assert small["matrix_lr"] == large["matrix_lr"] == 0.02
    for name in ("embedding_lr", "unembedding_lr", "scalar_lr"):
        assert small[name] == pytest.approx(large[name] / 8), name


def test_the_matrices_of_a_recursive_model_learn_less_from_a_smaller_batch() -> None:
    small, large = rates("trm-sudoku", 81 * 64), rates("trm-sudoku", 81 * 256)
    assert small["matrix_lr"] == pytest.approx(large["matrix_lr"] / 2)
