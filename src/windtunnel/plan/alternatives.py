"""The nearest plans that work, for a recipe that does not fit its rig."""

from __future__ import annotations

from dataclasses import replace

from windtunnel.recipe import Recipe
from windtunnel.rig import Rig, load_catalog

from .constants import Constants, load_constants
from .depth import Sized, deepest_that_fits, size_up
from .types import Alternative

MORE_GPUS = (1, 2, 4, 8)
MORE_NODES = (2, 4, 8)


def memory_alternatives(recipe: Recipe, rig: Rig, vocab: int, constants: Constants) -> tuple[Alternative, ...]:
    """What would fit, the cheapest first: recomputation, a smaller micro-batch, fewer passes, less depth, more or other GPUs."""
    found = [*_again(recipe, rig, vocab, constants)]
    if recipe.pretrain.micro_batch is not None:
        sized = size_up(_free_micro_batch(recipe), rig, vocab, constants)
        if sized.candidate.fits:
            micro = sized.candidate.layout.micro_batch
            found.append(Alternative(f"--set stages.pretrain.micro_batch={micro}", _gives(sized)))
    found += _fewer_passes(recipe, rig, vocab, constants)
    depth = deepest_that_fits(_free_micro_batch(recipe), rig, vocab, constants)
    if depth is not None and depth < int(recipe.gpt.depth):
        free = "" if recipe.pretrain.micro_batch is None else " --set stages.pretrain.micro_batch=null"
        found.append(Alternative(f"--set model.depth={depth}{free}", f"the largest depth that fits {rig.name}"))
    more = _more_of_the_same(recipe, rig, vocab, constants)
    return tuple(found + ([more] if more else []) + _other_gpus(recipe, rig, vocab))


def _again(recipe: Recipe, rig: Rig, vocab: int, constants: Constants) -> list[Alternative]:
    """Of a recursive GPT: the same batch without recording, or with more computed again."""
    found = []
    if recipe.pretrain.graphs is True:
        stage = recipe.pretrain.model_copy(update={"graphs": "auto"})
        sized = size_up(recipe.with_stages(pretrain=stage), rig, vocab, constants)
        if sized.candidate.fits:
            found.append(Alternative("--set stages.pretrain.graphs=auto", _gives(sized)))
    if recipe.trm is not None and recipe.layout.recompute is not None:
        for again in ("step", "block"):
            layout = recipe.layout.model_copy(update={"recompute": again})
            sized = size_up(recipe.model_copy(update={"layout": layout}), rig, vocab, constants)
            if sized.candidate.fits:
                found.append(Alternative(f"--set layout.recompute={again}", _gives(sized)))
                break
    return found


def _fewer_passes(recipe: Recipe, rig: Rig, vocab: int, constants: Constants) -> list[Alternative]:
    """Of a recursive GPT: gradients that end sooner, or the most supervision steps, loops or cycles that fit; each by itself."""
    if recipe.trm is None:
        return []
    found = []
    given = recipe.trm.resolved
    tried = {key: _fewer(getattr(given, key)) for key in ("supervision", "loops", "cycles")}
    # Of the steps that one backward pass covers nothing is freed before it.
    tried = {"detach_from": [0] if given.detach_from > 0 and given.supervision > 1 else []} | tried
    for key, values in tried.items():
        for value in values:
            trm = recipe.trm.model_copy(update={key: value})
            sized = size_up(recipe.model_copy(update={"trm": trm}), rig, vocab, constants)
            if sized.candidate.fits:
                found.append(Alternative(f"--set trm.{key}={value}", _gives(sized)))
                break
    return found


def _fewer(count: int) -> list[int]:
    return sorted(({count * quarters // 4 for quarters in (3, 2, 1)} | {1}) - {0, count}, reverse=True)


def _more_of_the_same(recipe: Recipe, rig: Rig, vocab: int, constants: Constants) -> Alternative | None:
    if rig.gpu is None:
        return None
    sizes = [(1, n) for n in MORE_GPUS] + [(nodes, 8) for nodes in MORE_NODES]
    for nodes, count in sizes:
        if nodes * count <= rig.gpus:
            continue
        bigger = replace(rig, gpus_per_node=count, nodes=nodes, network_gbs=rig.network_gbs / rig.gpus_per_node * count)
        sized = size_up(_free_micro_batch(recipe), bigger, vocab, constants)
        if sized.candidate.fits:
            return Alternative(f"--rig {_name(rig.gpu.name, nodes, count)}", _gives(sized))
    return None


def _other_gpus(recipe: Recipe, rig: Rig, vocab: int) -> list[Alternative]:
    """Other kinds of GPU, as many as now or the fewest that do, cheapest first; at most three."""
    catalog = load_catalog()
    found: list[tuple[float, Alternative]] = []
    now = max(1, rig.gpus_per_node)
    for name, entry in catalog.gpus.items():
        if rig.gpu is not None and name == rig.gpu.name:
            continue
        constants = load_constants(name)
        for count in (now, *(n for n in MORE_GPUS if n > now)):
            other = replace(
                rig, gpu=catalog.gpu(name), gpus_per_node=count, link_gbs=entry.link_gbs, network_gbs=entry.network_gbs * count
            )
            if not _precision_works(recipe, other):
                continue
            sized = size_up(_free_micro_batch(recipe), other, vocab, constants)
            if sized.candidate.fits:
                price = (entry.price.price().middle() if entry.price else None) or 1e3
                alternative = Alternative(f"--rig {_name(name, other.nodes, count)}", _gives(sized))
                found.append((price * count, alternative))
                break
    return [alternative for _, alternative in sorted(found, key=lambda pair: pair[0])[:3]]


def _precision_works(recipe: Recipe, rig: Rig) -> bool:
    return recipe.pretrain.precision != "fp8" or (rig.gpu is not None and rig.gpu.capability >= (9, 0))


def _free_micro_batch(recipe: Recipe) -> Recipe:
    return recipe.with_stages(pretrain=recipe.pretrain.model_copy(update={"micro_batch": None}))


def _name(gpu: str, nodes: int, count: int) -> str:
    one = f"{count}x{gpu}" if count > 1 else gpu
    return f"'{nodes}x({one})'" if nodes > 1 else one


def _gives(sized: Sized) -> str:
    candidate, layout = sized.candidate, sized.candidate.layout
    again = "" if layout.recompute == "none" else f" with recompute={layout.recompute}"
    how = f" at micro-batch {layout.micro_batch}{again}" if sized.passes.recursive else ""
    return f"depth {sized.depth} needs {candidate.peak_gib:.1f} of {candidate.limit_gib:.1f} GiB a rank there{how}"
