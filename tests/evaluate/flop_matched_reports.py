"""Reports on recursive runs and their baselines that are made up, and what they are made of."""

import math
from dataclasses import replace

import numpy as np

from windtunnel.evaluate import Length, Measured, Member, weigh
from windtunnel.evaluate.comparison import ComparisonReport
from windtunnel.model import RecursionShape, gpt_shape
from windtunnel.recipe import GPTModel, Recipe, load_recipe, stage_recipe

LENGTH = Length(100, 4096, "fp32")


def recipe_of(name: str, *sets: str) -> Recipe:
    recipe = load_recipe(name, sets)
    return stage_recipe(recipe, recipe.training[-1].name) if recipe.training else recipe


def made(losses: dict[str, list[float]], solved: dict[str, float] | None = None) -> tuple[list[Member], dict[str, Measured]]:
    """Members and measurements with given losses by step; differences between models vary little over units."""
    dice = np.random.default_rng(0)
    hard = dice.normal(0, 0.5, 300)
    base = gpt_shape(GPTModel(depth=2, aspect=16, head_dim=16, sequence=32, value_embeddings=False), 20)
    recipe = recipe_of("trm")
    members, measured = [], {}
    for i, (name, steps) in enumerate(losses.items()):
        kind = "run" if not i else "recurrent" if name.startswith("recurrence") else "plain"
        shape = base if kind == "plain" else replace(base, recursion=RecursionShape("layerwise", 1, 1, len(steps)))
        if kind == "plain" and name != "same-parameters":
            shape = replace(
                base, layers={"between": 4, "same-flops": 8}[name], windows=(32,) * {"between": 4, "same-flops": 8}[name]
            )
        members.append(Member(name, kind, name, recipe, shape))  # type: ignore[arg-type]
        nats = np.stack([(loss + hard + dice.normal(0, 0.05, 300)) * 40 for loss in steps])
        right = None if solved is None else (dice.random(300) < solved[name]).astype(float)
        measured[name] = Measured(nats, np.full(300, 40.0), nats[-1], np.full(300, 80.0), right)
    return members, measured


def report_on(losses: dict[str, list[float]], solved: dict[str, float] | None = None, preset: str = "honest") -> ComparisonReport:
    members, measured = made(losses, solved)
    return weigh(members, measured, run="test", units="documents", preset=preset, uniform=math.log(20))


HONEST = {"recursive": [2.2, 2.1, 2.0], "same-parameters": [2.1], "between": [1.95], "same-flops": [1.8], "recurrence-2": [2.05]}
