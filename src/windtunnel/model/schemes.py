"""How states recurse in one supervision step: three schemes over the same blocks.

    layerwise   each block in turn: n times z += f(norm(x + y + z)), then y += f(norm(y + z))
    two_latent  the whole stack:    n times z  = f(x + y + z),       then y  = f(y + z)
    looped      the whole stack:    n times y  = f(y, x)

x are the normed embeddings, y is the answer, z the latent state; all of it is repeated T times. f of `layerwise`
is a block with its own residual, u + attention + MLP; of `two_latent` blocks with a norm after every residual
(Samsung's Tiny Recursive Model, arXiv:2510.04871); of `looped` the plain GPT up to its last norm.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .gpt import Attend, Block, fp8_now
from .refine import moved, refine
from .residual import GradientAmax, add_norm
from .shape import RecursionShape

if TYPE_CHECKING:
    from .recursive import RecursiveGPT

# What one supervision step hands to the next: (y, z), or (y,) where there is no latent state.
Carry = tuple[Tensor, ...]


class Inputs(NamedTuple):
    """What a micro-batch is to the recursion: normed embeddings (B, T, C), value embeddings of each layer that has them."""

    first: Tensor
    extras: list[Tensor]


def again(on: bool, function: Callable[..., Any], *given: object) -> Any:
    """Return function(*given); if `on`, what it keeps for the backward pass is computed again there."""
    # Nothing random is in it: no state of a generator need be kept, and recomputing gives the same bits.
    if on and torch.is_grad_enabled():
        return checkpoint(function, *given, use_reentrant=False, preserve_rng_state=False, determinism_check="none")
    return function(*given)


def application(block: Block, u: Tensor, same: Tensor, attention: Attend) -> tuple[Tensor, Tensor]:
    """Return f(u) = u + attention + MLP of normed states u as two addends; `same` is u for the residual."""
    in_fp8 = fp8_now(block.attention, "output")
    slot = GradientAmax() if in_fp8 else None
    h, v, amax = add_norm(same, attention(block, u, None, None, slot), want_amax=in_fp8, gradient_amax=slot)
    return h, block.mlp(v, amax)


def post_norm(model: RecursiveGPT, u: Tensor, attention: Attend) -> Tensor:
    """Apply all blocks, with a norm after every residual."""
    same = u
    for block in model.layers():
        _, _, u, same, _ = refine(same, attention(block, u, None, None, None), keep=False)
        _, _, u, same, _ = refine(same, block.mlp(u), keep=False)
    return u


class _State(NamedTuple):
    """Between two applications of a block: s = x + y + z, the answer, and u, the normed states that come next, twice."""

    s: Tensor
    y: Tensor
    u: Tensor
    same: Tensor
    x: Tensor


def layerwise(model: RecursiveGPT, inputs: Inputs, carry: Carry, attention: Attend | None) -> Carry:
    """Do one supervision step. s is carried in the place of z: an update of z is then a plain residual one."""
    loops, run = model.recursion.loops, model.unit(attention)

    def cycle(block: Block, state: _State) -> _State:
        s, y, u, same, x = state
        for loop in range(loops):
            h, m = run(block, u, same)
            if loop < loops - 1:
                s, _, u, same, _ = refine(s, h, m)
            else:
                s, _, u, same, x = refine(s, h, m, x=x)
        h, m = run(block, u, same)
        s, y, u, same, _ = refine(s, h, m, y=y)
        return _State(s, y, u, same, x)

    s, _, u, same, _ = refine(inputs.first, *carry)
    state = _State(s, carry[0], u, same, inputs.first)
    for block in model.layers():
        for trained in _cycles(model.recursion):
            if trained:
                state = cycle(block, state)
                continue
            # Nothing of it is kept: cycles without gradient cost time, no memory.
            with torch.no_grad():
                later = cycle(block, state)
            # A cycle without gradient is a constant that is added.
            s, _, u, same, _ = refine(moved(later.s, state.s), None)
            state = _State(s, moved(later.y, state.y), u, same, state.x)
    return state.y, state.s - state.x - state.y


def two_latent(model: RecursiveGPT, inputs: Inputs, carry: Carry, attention: Attend | None) -> Carry:
    """Do one supervision step."""
    recursion, run = model.recursion, model.unit(attention)
    x, (y, z) = inputs.first, carry
    for trained in _cycles(recursion):
        with _gradient(trained):
            given = x + y
            for _ in range(recursion.loops):
                z = run(given + z)
            y = run(y + z)
    return y, z


def looped(model: RecursiveGPT, inputs: Inputs, carry: Carry, attention: Attend | None) -> Carry:
    """Do one supervision step."""
    recursion, run = model.recursion, model.unit(attention)
    (y,) = carry
    for trained in _cycles(recursion):
        with _gradient(trained):
            for _ in range(recursion.loops):
                y = run(y, inputs.first, inputs.extras)
    return (y,)


def _cycles(recursion: RecursionShape) -> Iterator[bool]:
    """Yield for each cycle whether it has a gradient."""
    for i in range(recursion.cycles):
        yield recursion.gradient_cycles == "all" or i == recursion.cycles - 1


def _gradient(on: bool) -> contextlib.AbstractContextManager[object]:
    return contextlib.nullcontext() if on else torch.no_grad()


SCHEMES = {"layerwise": layerwise, "two_latent": two_latent, "looped": looped}
