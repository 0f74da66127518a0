"""How often a step's tokens go through blocks and head, and how much of that one backward pass covers, as counts."""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.model import GPTShape
from windtunnel.recipe import Recipe


@dataclass(frozen=True)
class Passes:
    """Of one micro-batch. A plain GPT goes through its blocks once.

    Attributes:
        applications: of blocks, in a forward pass over all supervision steps. graded: those of them with a gradient.
        heads: passes through head and loss, one a supervision step.
        step: graded applications of one supervision step.
        joined: supervision steps that one backward pass covers; at a detach boundary it ends, and its memory is freed.
        unit: applications that are computed again together where 'block' is asked for: one, or those of the whole stack.
        ends: normed states kept at the end of every supervision step beside the inputs of what is computed again by 'block'.
        seams: normed states kept where cycles without a gradient end, in one supervision step.
        combined: applications whose input is combined from several states and normed (schemes with a latent).
        carried: states that go from one application to the next beside the embedding.
        updates: optimizer steps a batch. averaged: weights are averaged over the steps too (EMA).
    """

    applications: int
    graded: int
    heads: int = 1
    step: int = 0
    joined: int = 1
    unit: int = 1
    ends: int = 0
    seams: int = 0
    combined: int = 0
    carried: int = 0
    updates: int = 1
    averaged: bool = False

    @property
    def recursive(self) -> bool:
        """Whether any of it happens more than once."""
        return self.carried > 0

    def forward(self, recompute: str) -> int:
        """Applications forwards in a step, computed again or not."""
        return self.applications + (0 if recompute == "none" else self.graded)

    def kept(self, recompute: str) -> int:
        """Applications whose activations are held at once."""
        return {"none": self.joined * self.step, "step": self.step, "block": self.unit}[recompute]

    def borders(self, recompute: str) -> int:
        """States kept between activations, or in place of those that are computed again, each (tokens, dim)."""
        inputs = self.joined * (self.step // self.unit + self.seams)
        return {"none": self.joined * self.seams, "step": self.joined * self.carried + self.seams, "block": inputs}[recompute]


def passes_of(recipe: Recipe, shape: GPTShape) -> Passes:
    """Of a recipe's model with this shape."""
    recursion = shape.recursion
    if recipe.trm is None or recursion is None:
        return plain(shape)
    given = recipe.trm.resolved
    graded = shape.layers * recursion.gradient_passes
    latent, whole_stack = recursion.scheme != "looped", recursion.scheme != "layerwise"
    blind = recursion.passes - recursion.gradient_passes
    return Passes(
        applications=shape.applications,
        graded=graded * recursion.supervision,
        heads=recursion.supervision,
        step=graded,
        joined=joined_steps(recursion.supervision, given.detach_from),
        unit=shape.layers if whole_stack else 1,
        # The answer that the head reads, unless it is the state itself; and a block's next input, which no block takes.
        ends={"layerwise": 2, "two_latent": 1, "looped": 0}[recursion.scheme],
        seams=0 if whole_stack else shape.layers * blind // recursion.cycle_passes,
        combined=shape.applications if latent else 0,
        carried=2 if latent else 1,
        updates=recursion.supervision if given.updates == "each" else 1,
        averaged=given.ema is not None,
    )


def plain(shape: GPTShape) -> Passes:
    """Of a GPT whose blocks are applied once."""
    return Passes(shape.layers, shape.layers, step=shape.layers)


def joined_steps(supervision: int, detach_from: int) -> int:
    """Most supervision steps between two detach boundaries: states are detached after every step from `detach_from` on."""
    return min(supervision, detach_from + 1)
