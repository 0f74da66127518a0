"""Phases of a recipe: runs that follow one another, and the gates between them."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from .section import Section


class Gates(Section):
    """What a phase's run must have shown before the next may spend money. null: not asked for."""

    order: bool = Field(True, description="each supervision step's validation loss is below the one before")
    refinement: float | None = Field(None, description="least percent by which the last step's loss is below the first's")
    gradient_norm: tuple[float, float] | None = Field(None, description="band of the median gradient norm")
    decreasing: bool = Field(True, description="the loss falls smoothly")
    utilisation: float | None = Field(80.0, ge=0, le=100, description="least mean GPU utilisation, percent; CPUs have none")


class Phase(Section):
    """One run of a recipe."""

    name: str = Field(pattern="^[a-z][a-z0-9_-]*$")
    description: str = ""
    set: dict[str, Any] = Field(default_factory=dict, description="keys of the recipe that differ in this phase")
    gates: Gates | None = Field(None, description="must hold at the end of this phase before the next begins")
