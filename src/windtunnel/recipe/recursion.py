"""How a GPT's blocks recurse and how each supervision step is scored: the `trm` section of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from pydantic import Field

from .section import Section

Scheme = Literal["layerwise", "looped", "two_latent"]
PresetName = Literal["moderate", "aggressive", "extreme", "honest"]
Updates = Literal["once", "each"]


MOST_SUPERVISION = 1024
"""Supervision steps that a model may be used with, in the recipe or by --supervision; training is held to fewer."""


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
        None, ge=1, le=MOST_SUPERVISION, description="supervision steps when the model is used; null: as in training"
    )
    weight_base: float | None = Field(None, gt=0, description="supervision step i weighs base^i; 1: all the same")
    improvement_reward: float | None = Field(None, ge=0, description="reward for each step's relative improvement over the last")
    detach_from: int | None = Field(
        None, ge=0, description="the states carried over are detached after supervision steps of this number and above"
    )
    updates: Updates | None = Field(None, description="optimizer steps: one a batch, or one after each supervision step")
    gradient_cycles: Literal["all", "last"] = Field("all", description="'last': only the last cycle of a step has a gradient")
    # As TRM's and HRM's Q head (arXiv:2510.04871, arXiv:2506.21734).
    halting: bool = Field(False, description="a head that tells whether the answer is right (models that are not causal)")
    ema: float | None = Field(None, gt=0, lt=1, description="decay of the averaged weights that are evaluated and served")

    def describe(self) -> str:
        """Return what it does to the model, in words that follow 'a GPT of depth 12'."""
        return f"that recurses ({self.scheme}, {self.loops} loops, {self.supervision} supervision steps, preset {self.preset})"

    @property
    def resolved(self) -> ResolvedRecursion:
        """The section with the preset's values where it leaves them open."""
        preset = PRESETS[self.preset]
        updates = preset.updates if self.updates is None else self.updates
        # An update after every supervision step ends each step's graph: a preset's later detaching would mean nothing.
        detach_from = 0 if updates == "each" else preset.detach_from
        return ResolvedRecursion(
            scheme=self.scheme,
            preset=self.preset,
            loops=self.loops,
            cycles=self.cycles,
            supervision=self.supervision,
            inference_supervision=self.supervision if self.inference_supervision is None else self.inference_supervision,
            weight_base=preset.weight_base if self.weight_base is None else self.weight_base,
            improvement_reward=preset.improvement_reward if self.improvement_reward is None else self.improvement_reward,
            detach_from=detach_from if self.detach_from is None else self.detach_from,
            updates=updates,
            gradient_cycles=self.gradient_cycles,
            halting=self.halting,
            ema=self.ema,
        )


@dataclass(frozen=True)
class ResolvedRecursion:
    """A `Recursion` in which nothing is left open; `ema` None: weights are not averaged. Fields as there."""

    scheme: Scheme
    preset: PresetName
    loops: int
    cycles: int
    supervision: int
    inference_supervision: int
    weight_base: float
    improvement_reward: float
    detach_from: int
    updates: Updates
    gradient_cycles: Literal["all", "last"]
    halting: bool
    ema: float | None


@dataclass(frozen=True)
class Preset:
    """What a preset stands for.

    Attributes:
        weight_base, improvement_reward, detach_from, updates: as in `Recursion`.
        matrix_lr, embedding_lr: peaks; None: derived by the usual rules. warmup_steps: None: the schedule's own.
        clip: largest gradient norm.
        refinement: percent promised, from and to; None: nothing is.
        gradient_norm: band of the gradient norm before clipping; None: none is known.
    """

    weight_base: float
    improvement_reward: float
    detach_from: int
    updates: Updates
    matrix_lr: float | None
    embedding_lr: float | None
    warmup_steps: int | None
    clip: float | None
    refinement: tuple[float, float] | None
    gradient_norm: tuple[float, float] | None


# The first three are those of the public TRM fork of nanochat (CodeHalwell/nanochat-codhe, nanochat/gpt.py) with the
# rates of its guide. `honest` leaves every supervision step its full weight, rewards nothing but a low loss, lets
# gradients through all steps (truncated back-propagation lowers the worth of recursion: arXiv:2604.21106) and has the
# rates of the plain model. benchmarks/results/presets-cpu.json: on a toy, nothing beat it by more than seeds differ but
# an update after each supervision step, and that no more than smaller batches with as many updates do.
PRESETS: dict[str, Preset] = {
    "moderate": Preset(3.0, 0.5, 2, "once", 0.002, 0.02, 100, 1.0, (8.0, 12.0), (0.3, 0.8)),
    "aggressive": Preset(5.0, 1.0, 2, "once", 0.001, 0.01, 150, 1.0, (15.0, 25.0), (0.5, 1.5)),
    "extreme": Preset(10.0, 2.0, 2, "once", 0.0005, 0.005, 200, 1.0, (50.0, 97.0), (2.0, 15.0)),
    "honest": Preset(1.0, 0.0, 64, "once", None, None, None, 1.0, None, None),
}
assert set(PRESETS) == set(get_args(PresetName))
