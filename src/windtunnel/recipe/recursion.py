"""How a GPT's blocks recurse and how each supervision step is scored: the `trm` section of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from .section import Section

Scheme = Literal["layerwise", "looped", "two_latent"]
PresetName = Literal["moderate", "aggressive", "extreme", "honest"]


class Recursion(Section):
    """A recursive GPT with deep supervision. What is null comes from the preset."""

    scheme: Scheme = Field(
        "layerwise",
        description="layerwise: each block refines a latent and an answer state; looped: the whole stack again and again; "
        "two_latent: the whole stack refines a latent, then the answer (Tiny Recursive Model, arXiv:2510.04871)",
    )
    preset: PresetName = Field("aggressive", description="how supervision steps are weighted, and the rates that go with it")
    loops: int = Field(2, ge=1, le=64, description="latent updates before each update of the answer (n_loops)")
    cycles: int = Field(1, ge=1, le=64, description="times loops and answer update are repeated in a supervision step (T)")
    supervision: int = Field(4, ge=1, le=64, description="supervision steps in training (N_sup): the loss is taken after each")
    inference_supervision: int | None = Field(
        None, ge=1, le=64, description="supervision steps when the model is used; null: as in training"
    )
    weight_base: float | None = Field(None, gt=0, description="supervision step i weighs base^i; 1: all the same")
    improvement_reward: float | None = Field(None, ge=0, description="reward for each step's relative improvement over the last")
    detach_from: int | None = Field(
        None, ge=0, description="the states carried over are detached after supervision steps of this number and above"
    )
    updates: Literal["once", "each"] | None = Field(
        None, description="optimizer steps: one a batch, or one after each supervision step"
    )
    gradient_cycles: Literal["all", "last"] = Field("all", description="'last': only the last cycle of a step has a gradient")
    halting: bool = Field(False, description="a head that tells whether the answer is right (models that are not causal)")
    ema: float | None = Field(None, gt=0, lt=1, description="decay of the averaged weights that are evaluated and served")


@dataclass(frozen=True)
class Preset:
    """What a preset stands for. Rates are peaks of the optimizer; null: derived by the usual rules."""

    weight_base: float
    improvement_reward: float
    detach_from: int
    updates: Literal["once", "each"]
    matrix_lr: float | None
    embedding_lr: float | None
    warmup_steps: int | None
    clip: float | None
    refinement: tuple[float, float] | None
    gradient_norm: tuple[float, float] | None
