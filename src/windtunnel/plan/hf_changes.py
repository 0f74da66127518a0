"""Changes of a Hugging Face recipe that need less memory: what to try where it does not fit, and what may stand in for it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from windtunnel.model import hf_shape, known_models
from windtunnel.recipe import HuggingFaceModel, Recipe

from .alternatives import AS_IT_IS, UNTRAINED, Change

ADAPTER = "model.adapter.rank=16"
ON_ATTENTION = "model.adapter.targets=attention"
NO_ANSWERS = "stages.sft.answers.every=null"
# int8 takes as much as fp8, which the package's own engine runs.
BITS = {"bf16": 16, "fp8-experts": 9, "fp8": 8, "int8": 8, "int4": 4}
HELD = {
    "fp8-experts": "beside experts frozen in fp8",
    "int8": f"on frozen int8 weights, {UNTRAINED}",
    "int4": f"on frozen int4 weights, {UNTRAINED}",
}


def changes(recipe: Recipe) -> list[Iterator[Change]]:
    """Return kinds of change for the same rig; of each the first that fits is worth naming."""
    return [
        _launched(recipe),
        _engines(recipe),
        _fewer_answers(recipe),
        _freer_layout(recipe),
        _leaner_states(recipe),
        _cheaper_methods(recipe),
        _shorter(recipe),
    ]


def elsewhere(recipe: Recipe) -> list[Change]:
    """Return what to try on other rigs: the recipe as it is, then ever cheaper methods."""
    return [AS_IT_IS, *_fewer_answers(recipe), *_cheaper_methods(recipe)]


def stand_ins(recipe: Recipe) -> list[Iterator[Change]]:
    """Return ways to train the same model more cheaply, and smaller models of its kind, the largest first."""
    return [_same_model(recipe), _smaller_models(recipe)]


def _launched(recipe: Recipe) -> Iterator[Change]:
    """Record nothing: a recording holds its memory for good."""
    if recipe.sft is not None and recipe.sft.graphs is True:
        yield Change(("stages.sft.graphs=false",), "every kernel launched by the host")


def _engines(recipe: Recipe) -> Iterator[Change]:
    """Have engines answer, so that no learner holds a whole copy of the weights beside its own states."""
    if recipe.rl is not None and recipe.rl.engine == "in-turn":
        beside = "stages.rl.engine=vllm"
        yield Change((beside,), "vLLM beside the learners answers, held-out prompts too")
        if isinstance(recipe.model, HuggingFaceModel) and recipe.model.adapter is None:
            yield Change((beside, "stages.rl.states=int8"), "vLLM beside the learners answers; AdamW's moments in 8 bits")
            yield Change((beside, ADAPTER), "vLLM beside the learners answers; LoRA on frozen bf16 weights")


def _fewer_answers(recipe: Recipe) -> Iterator[Change]:
    """Answer held-out questions in the end alone: between steps a whole copy of the weights answers them."""
    if recipe.sft is not None and recipe.sft.answers is not None and recipe.sft.answers.every is not None:
        yield Change((NO_ANSWERS,), "held-out questions asked when it is evaluated")


def _freer_layout(recipe: Recipe) -> Iterator[Change]:
    """Give back to the planner what the recipe itself fixed."""
    stage = _stage(recipe)
    fixed = [f"layout.{key}=null" for key, value in recipe.layout if value is not None]
    keys = ("micro_batch", "learners", "engines", "engine_tensor")
    given = [key for key in keys if getattr(getattr(recipe, stage), key, None) is not None]
    fixed = [f"stages.{stage}.{key}=null" for key in given] + fixed
    for text in fixed:
        yield Change((text,), "the planner's choice")
    if len(fixed) > 1:
        yield Change(tuple(fixed), "the planner's layout")


def _leaner_states(recipe: Recipe) -> Iterator[Change]:
    """All weights still trained, with less held for it."""
    model = recipe.model
    assert isinstance(model, HuggingFaceModel)
    if model.adapter is not None:
        return
    stage = _stage(recipe)
    back = ("model.weights=bf16",) if model.weights != "bf16" else ()
    if back:
        yield Change(back, "all weights trained in bf16 with fp32 master weights")
    yield Change((*back, f"stages.{stage}.states=int8"), "AdamW's moments in 8 bits")
    yield Change((*back, f"stages.{stage}.master=false", f"stages.{stage}.states=bf16"), "bf16 weights updated in place")
    yield Change((*back, f"stages.{stage}.master=false", f"stages.{stage}.states=int8"), "bf16 weights, 8-bit states")
    if stage != "rl":  # nothing runs rounds that way
        yield Change((*back, "layout.offload=optimizer"), "optimizer states in CPU memory")


def _cheaper_methods(recipe: Recipe) -> Iterator[Change]:
    """Adapters on frozen weights of ever fewer bits."""
    model = recipe.model
    assert isinstance(model, HuggingFaceModel)
    held = [name for name in ("bf16", "fp8-experts", "fp8", "int4") if _applies(name, model) and BITS[name] < BITS[model.weights]]
    with_adapter: tuple[str, ...] = ()
    if model.adapter is None:
        with_adapter, held = (ADAPTER,), [model.weights, *held]
    for weights in held:
        sets = (*with_adapter, f"model.weights={weights}") if weights != model.weights else with_adapter
        if sets:
            # An adapter on attention alone, where only that fits.
            how = HELD.get(weights, f"on frozen {weights} weights")
            yield Change(sets, f"LoRA {how}", (*sets, ON_ATTENTION) if ADAPTER in sets else None)
        for seldom in _fewer_answers(recipe) if weights == "fp8-experts" and sets else ():
            on_attention = (ON_ATTENTION,) if ADAPTER in sets else ()
            yield Change((*sets, *on_attention, *seldom.sets), f"LoRA {HELD[weights]}, {seldom.what}")


def _shorter(recipe: Recipe) -> Iterator[Change]:
    model = recipe.model
    assert isinstance(model, HuggingFaceModel)
    length = model.sequence // 2
    while length >= 512:
        yield Change((f"model.sequence={length}",), f"sequences of {length:,} tokens")
        length //= 2


def _same_model(recipe: Recipe) -> Iterator[Change]:
    """Yield the same weights with an adapter, then in fewer bits."""
    model = recipe.model
    assert isinstance(model, HuggingFaceModel)
    adapter = () if model.adapter else (ADAPTER,)
    for weights, how in (
        ("bf16", "LoRA"),
        ("fp8-experts", "LoRA beside fp8 experts"),
        ("fp8", "LoRA on fp8 weights"),
        ("int8", "LoRA on 8-bit weights"),
        ("int4", "LoRA on 4-bit weights"),
    ):
        if _applies(weights, model) and (model.adapter is None or BITS[weights] < BITS[model.weights]):
            held = () if weights == model.weights else (f"model.weights={weights}",)
            yield Change((*adapter, *held), f"{model.config} as {how}")


def _smaller_models(recipe: Recipe) -> Iterator[Change]:
    """Yield built-in models of the same family with fewer parameters: of the same name first, then architecture."""
    model = recipe.model
    assert isinstance(model, HuggingFaceModel)
    own = hf_shape(model.config)
    shapes = [hf_shape(name) for name in known_models()]
    kin = [s for s in shapes if s.parameters < own.parameters and (_word(s.name) == _word(own.name) or s.family == own.family)]
    kin.sort(key=lambda s: (_word(s.name) != _word(own.name), s.family != own.family, -s.parameters))
    for shape in kin:
        yield Change((f"model.config={shape.name}",), shape.name)


def _applies(weights: str, model: HuggingFaceModel) -> bool:
    """Whether the model has what a format is for."""
    return weights != "fp8-experts" or hf_shape(model.config).experts is not None


def _word(name: str) -> str:
    """Return 'qwen' of 'qwen2.5-7b'."""
    found = re.match("[a-z]+", name)
    return found[0] if found else name


def _stage(recipe: Recipe) -> str:
    return recipe.training[0].kind
