"""The largest stand-ins for a model that does not fit a rig: fewer trained weights, fewer bits, a smaller model of its family."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from windtunnel.recipe import GPTModel, HuggingFaceModel, LoRA, Recipe, UserError
from windtunnel.rig import Rig

from .constants import load_constants
from .corpus import vocabulary
from .depth import at_depth, deepest_that_fits
from .plan import make_plan
from .types import Plan

BITS = {"bf16": 16, "fp8": 8, "int8": 8, "int4": 4}


@dataclass(frozen=True)
class StandIn:
    """What to put in the model's place on one rig: how to say it on the command line, in words, and its plan there."""

    change: str
    what: str
    plan: Plan

    def to_json(self) -> dict[str, Any]:
        """Stable keys."""
        return {
            "change": self.change,
            "what": self.what,
            "params": self.plan.params,
            "peak_gib": self.plan.peak_gib,
            "limit_gib": self.plan.limit_gib,
        }


def stand_ins(recipe: Recipe, rig: Rig) -> tuple[StandIn, ...]:
    """The same model trained more cheaply, and the largest smaller model trained the same way; those of them that fit."""
    if isinstance(recipe.model, GPTModel):
        return _shallower(recipe, rig)
    ways = (_first_that_fits(rig, _same_model(recipe)), _first_that_fits(rig, _smaller_models(recipe)))
    return tuple(way for way in ways if way is not None)


def _shallower(recipe: Recipe, rig: Rig) -> tuple[StandIn, ...]:
    constants = load_constants(rig.gpu.name if rig.gpu else None)
    depth = deepest_that_fits(recipe, rig, vocabulary(recipe)[0], constants)
    if depth is None or depth >= int(recipe.gpt.depth):
        return ()
    plan = make_plan(at_depth(recipe, depth), rig, suggest=False)
    return (StandIn(f"--set model.depth={depth}", f"depth {depth}", plan),)


def _first_that_fits(rig: Rig, options: Iterator[tuple[str, str, Recipe]]) -> StandIn | None:
    for change, what, recipe in options:
        try:
            plan = make_plan(recipe, rig, suggest=False)
        except UserError:
            continue  # not on this hardware
        if plan.peak_gib <= plan.limit_gib and all(role.peak_gib <= role.limit_gib for role in plan.roles.values()):
            return StandIn(change, what, plan)
    return None


def _same_model(recipe: Recipe) -> Iterator[tuple[str, str, Recipe]]:
    """The same weights with an adapter, then in fewer bits."""
    model = recipe.model
    assert isinstance(model, HuggingFaceModel)
    adapter = "" if model.adapter else "--set model.adapter.rank=16 "
    for weights, how in (
        ("bf16", "LoRA"),
        ("fp8", "LoRA on fp8 weights"),
        ("int8", "LoRA on 8-bit weights"),
        ("int4", "LoRA on 4-bit weights"),
    ):
        if model.adapter and BITS[weights] >= BITS[model.weights]:
            continue
        changed = model.model_copy(update={"adapter": model.adapter or LoRA(), "weights": weights})
        flag = "" if weights == "bf16" else f"--set model.weights={weights}"
        yield f"{adapter}{flag}".strip(), f"{model.config} as {how}", recipe.model_copy(update={"model": changed})


def _smaller_models(recipe: Recipe) -> Iterator[tuple[str, str, Recipe]]:
    """Built-in models of the same family with fewer parameters: of the same name first, then architecture, the largest first."""
    from windtunnel.model import hf_shape, known_models

    model = recipe.model
    assert isinstance(model, HuggingFaceModel)
    own = hf_shape(model.config)
    shapes = [hf_shape(name) for name in known_models()]
    kin = [s for s in shapes if s.parameters < own.parameters and (_word(s.name) == _word(own.name) or s.family == own.family)]
    kin.sort(key=lambda s: (_word(s.name) != _word(own.name), s.family != own.family, -s.parameters))
    for shape in kin:
        changed = model.model_copy(update={"config": shape.name})
        yield f"--set model.config={shape.name}", shape.name, recipe.model_copy(update={"model": changed})


def _word(name: str) -> str:
    """'qwen' of 'qwen2.5-7b'."""
    found = re.match("[a-z]+", name)
    return found[0] if found else name
