"""Depth 'auto': the deepest model that fits the rig and reaches its tokens within the budget."""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.model import GPTShape, HyperParameters, derive, recipe_shape
from windtunnel.recipe import Recipe
from windtunnel.rig import Rig

from .constants import Constants
from .cost import budget_hours, budget_tokens, pace, round_steps
from .passes import Passes, passes_of
from .search import Candidate, search_layout

DEPTHS = tuple(range(2, 65, 2))
# Without a limit in time or tokens 'auto' has nothing to stop at: what people wait for.
UNBUDGETED_HOURS = {"cpu": 1.0, "cuda": 24.0}


@dataclass(frozen=True)
class Sized:
    """A recipe of one depth on a rig."""

    depth: int
    shape: GPTShape
    hyper: HyperParameters
    candidate: Candidate
    notes: tuple[str, ...]
    passes: Passes


def at_depth(recipe: Recipe, depth: int) -> Recipe:
    """The recipe with its depth set."""
    return recipe.model_copy(update={"model": recipe.gpt.model_copy(update={"depth": depth})})


def size_up(recipe: Recipe, rig: Rig, vocab: int, constants: Constants) -> Sized:
    """Shape, hyper-parameters and best layout of a recipe whose depth is a number."""
    assert recipe.gpt.depth != "auto"
    shape = recipe_shape(recipe, vocab)
    hyper, passes = derive(recipe, vocab), passes_of(recipe, shape)
    batch = int(hyper.batch_tokens.value)
    candidate, notes = search_layout(
        recipe.pretrain, shape, batch, rig, constants, passes, recipe.layout.recompute if passes.recursive else None
    )
    return Sized(recipe.gpt.depth, shape, hyper, candidate, tuple(notes), passes)


def pick_depth(recipe: Recipe, rig: Rig, vocab: int, constants: Constants, corpus: float | None) -> tuple[int, str]:
    """(depth, the reason): the deepest of DEPTHS that fits and reaches its derived tokens within the budget."""
    hours, why = budget_hours(recipe.budget, rig)
    counted = recipe.budget.tokens or recipe.budget.steps or (recipe.budget.epochs and corpus)
    if hours is None and not counted:
        hours = UNBUDGETED_HOURS["cuda" if rig.gpu else "cpu"]
        why = f"{hours:g} h, as the budget sets no limit that counts on {rig.name}"
    best, blocked = None, ""
    for depth in DEPTHS:
        sized = size_up(at_depth(recipe, depth), rig, vocab, constants)
        blocked = _blocked(recipe, sized, constants, corpus, hours, why)
        if blocked:
            # Both memory and hours only grow from here.
            break
        best = depth
    if best is None:
        return DEPTHS[0], f"depth {DEPTHS[0]}, the least that auto tries, although it {blocked}"
    if not blocked:
        return (
            best,
            f"depth {best}, the most that auto tries: it fits {rig.name} and reaches its tokens within {why or 'the budget'}",
        )
    return (
        best,
        f"depth {best}: the deepest that fits {rig.name} and reaches its tokens in the budget; depth {best + 2} {blocked}",
    )


def deepest_that_fits(recipe: Recipe, rig: Rig, vocab: int, constants: Constants) -> int | None:
    """The deepest of DEPTHS that fits the rig's memory, whatever it costs; None where none does."""
    low, high = 0, len(DEPTHS)
    while low < high:
        middle = (low + high) // 2
        if size_up(at_depth(recipe, DEPTHS[middle]), rig, vocab, constants).candidate.fits:
            low = middle + 1
        else:
            high = middle
    return DEPTHS[low - 1] if low else None


def _blocked(recipe: Recipe, sized: Sized, constants: Constants, corpus: float | None, hours: float | None, why: str) -> str:
    """Why this depth is too much, or ''."""
    candidate, tokens = sized.candidate, sized.hyper.tokens.value
    if not candidate.fits:
        return f"needs {candidate.peak_gib:.1f} of {candidate.limit_gib:.1f} GiB"
    batch = candidate.layout.batch_tokens
    if hours is not None:
        needed = pace(recipe, candidate, constants, corpus).hours(round_steps(tokens, batch))
        if needed > hours:
            return f"would need {needed:.3g} h for its {tokens:,.0f} tokens ({why}: {hours:.3g} h)"
    allowed, which = budget_tokens(recipe.budget, batch, corpus)
    if allowed is not None and tokens > allowed:
        return f"wants {tokens:,.0f} tokens ({which} allows {allowed:,.0f})"
    return ""
