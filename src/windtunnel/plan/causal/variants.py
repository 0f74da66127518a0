"""The nearest plans that work: the recipe changed a little, or more and other GPUs, each tried before it is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from windtunnel.recipe import HuggingFaceModel, Recipe, UserError, validate
from windtunnel.rig import Rig, load_catalog

from ..types import Alternative

NODES = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96, 128)
MOST = 6
OTHERS = 2
ADAPTER = "model.adapter.rank=16"
ON_ATTENTION = "model.adapter.targets=attention"


class Weighed(Protocol):
    """What weighing a recipe on a rig tells."""

    @property
    def fits(self) -> bool:
        """Whether it can run."""

    @property
    def peak_gib(self) -> float:
        """Of the rank that needs most."""

    @property
    def limit_gib(self) -> float:
        """What that rank may use."""

    @property
    def layout(self) -> str:
        """In words."""


@dataclass(frozen=True)
class Scales:
    """How a recipe is weighed on a rig: in full, and the least GiB that all its GPUs together must hold."""

    weigh: Callable[[Recipe, Rig], Weighed]
    least_gib: Callable[[Recipe], float]


@dataclass(frozen=True)
class Change:
    """Keys of the recipe to set, and what that means in words."""

    sets: tuple[str, ...]
    what: str


AS_IT_IS = Change((), "")


def changed(recipe: Recipe, sets: tuple[str, ...]) -> Recipe:
    """The recipe with keys set, as `--set` does."""
    data = recipe.model_dump(mode="json")
    for text in sets:
        key, _, value = text.partition("=")
        here = data
        *sections, last = key.split(".")
        for section in sections:
            here[section] = dict(here.get(section) or {})
            here = here[section]
        here[last] = {"null": None, "true": True, "false": False}.get(value, int(value) if value.isdigit() else value)
    return validate(data, "--set")


def alternatives(recipe: Recipe, rig: Rig, scales: Scales) -> tuple[Alternative, ...]:
    """What would fit, the smallest change first: recipe keys on the same rig, more GPUs of its kind, other GPUs."""
    found = _on_same_rig(recipe, rig, scales)
    for change in (AS_IT_IS, *_cheaper_methods(recipe)):
        # What fits here already needs no more GPUs, nor do methods that need still less.
        if len(found) >= MOST or (change.sets and any(f"--set {change.sets[-1]}" in option.change for option in found)):
            break
        option = _more_of_the_same(recipe, rig, scales, change)
        if option:
            found.append(option)
    found += _other_gpus(recipe, rig, scales)[:OTHERS]
    return tuple({option.change: option for option in found}.values())


def _on_same_rig(recipe: Recipe, rig: Rig, scales: Scales) -> list[Alternative]:
    """The first of each kind of change that fits here."""
    found = []
    for kinds in (_freer_layout(recipe), _leaner_states(recipe), _cheaper_methods(recipe), _shorter(recipe)):
        for change in kinds:
            option = _try(recipe, rig, scales, change, elsewhere=False)
            if option:
                found.append(option)
                break
    return found


def _freer_layout(recipe: Recipe) -> Iterator[Change]:
    """What the recipe itself fixed, given back to the planner."""
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
    yield Change((*back, "layout.offload=optimizer"), "optimizer states in CPU memory")


def _cheaper_methods(recipe: Recipe) -> Iterator[Change]:
    """Adapters on frozen weights of ever fewer bits."""
    model = recipe.model
    assert isinstance(model, HuggingFaceModel)
    # int8 takes as much as fp8, which the package's own engine runs.
    bits = {"bf16": 16, "fp8": 8, "int8": 8, "int4": 4}
    held = [name for name in ("bf16", "fp8", "int4") if bits[name] < bits[model.weights]]
    with_adapter: tuple[str, ...] = ()
    if model.adapter is None:
        with_adapter, held = (ADAPTER,), [model.weights, *held]
    for weights in held:
        sets = (*with_adapter, f"model.weights={weights}") if weights != model.weights else with_adapter
        if sets:
            yield Change(sets, f"LoRA on frozen {weights} weights")


def _shorter(recipe: Recipe) -> Iterator[Change]:
    model = recipe.model
    assert isinstance(model, HuggingFaceModel)
    length = model.sequence // 2
    while length >= 512:
        yield Change((f"model.sequence={length}",), f"sequences of {length:,} tokens")
        length //= 2


def _more_of_the_same(recipe: Recipe, rig: Rig, scales: Scales, change: Change) -> Alternative | None:
    """The fewest GPUs of this kind that do."""
    if rig.gpu is None:
        return None
    name = rig.gpu.name
    most = load_catalog().gpus[name].max_per_node if name in load_catalog().gpus else 8
    sizes = [(1, n) for n in (1, 2, 4, 8) if n <= most] + [(nodes, most) for nodes in NODES]
    for nodes, count in sizes:
        if nodes * count <= rig.gpus:
            continue
        option = _try(recipe, _resized(rig, nodes, count), scales, change)
        if option:
            return option
    return None


def _other_gpus(recipe: Recipe, rig: Rig, scales: Scales) -> list[Alternative]:
    """Other kinds of GPU, as many as now or a whole node, cheapest first; the recipe as it is, else with an adapter."""
    catalog = load_catalog()
    found: list[tuple[int, float, Alternative]] = []
    for name, entry in catalog.gpus.items():
        if rig.gpu is not None and name == rig.gpu.name:
            continue
        for count in sorted({min(max(1, rig.gpus_per_node), entry.max_per_node), entry.max_per_node}):
            other = replace(
                rig,
                name=rig_name(name, 1, count),
                gpu=catalog.gpu(name),
                gpus_per_node=count,
                nodes=1,
                link_gbs=entry.link_gbs,
                network_gbs=entry.network_gbs * count,
            )
            price = ((entry.price.price().middle() if entry.price else None) or 1e3) * count
            options = ((i, _try(recipe, other, scales, c)) for i, c in enumerate((AS_IT_IS, *_cheaper_methods(recipe))))
            first = next(((i, option) for i, option in options if option), None)
            if first:
                found.append((first[0], price, first[1]))
                break
    return [option for _, _, option in sorted(found, key=lambda item: item[:2])]


def _resized(rig: Rig, nodes: int, count: int) -> Rig:
    assert rig.gpu is not None
    network = rig.network_gbs / max(1, rig.gpus_per_node) * count
    if rig.nodes == 1 and rig.gpu.name in load_catalog().gpus:
        network = load_catalog().gpus[rig.gpu.name].network_gbs * count
    return replace(rig, gpus_per_node=count, nodes=nodes, network_gbs=network, name=rig_name(rig.gpu.name, nodes, count))


def rig_name(gpu: str, nodes: int, count: int) -> str:
    """As `--on` takes it."""
    one = f"{count}x{gpu}" if count > 1 else gpu
    return f"{nodes}x({one})" if nodes > 1 else one


def _try(recipe: Recipe, rig: Rig, scales: Scales, change: Change, elsewhere: bool = True) -> Alternative | None:
    """The alternative, if it fits; an adapter on attention alone, where only that fits."""
    for sets in (change.sets, (*change.sets, ON_ATTENTION)) if ADAPTER in change.sets else (change.sets,):
        try:
            new = changed(recipe, sets) if sets else recipe
            if rig.gpu is None or scales.least_gib(new) > rig.gpus * rig.gpu.memory_gib:
                continue
            weighed = scales.weigh(new, rig)
        except UserError:
            continue
        if weighed.fits:
            where = f"--rig '{rig.name}'" if "(" in rig.name else f"--rig {rig.name}"
            words = [*(f"--set {text}" for text in sets), *([where] if elsewhere else [])]
            what = f"{change.what}: " if change.what else ""
            return Alternative(
                " ".join(words), f"{what}{weighed.peak_gib:.1f} of {weighed.limit_gib:.1f} GiB a rank; {weighed.layout}"
            )
    return None


def _stage(recipe: Recipe) -> str:
    return "rl" if recipe.rl else "sft"
