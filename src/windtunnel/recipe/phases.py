"""Phases of a recipe: runs that follow one another, and the gates between them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from .section import Section


class Gates(Section):
    """What a phase's run must have shown before the next may spend money. null: not asked for.

    'preset' is the limit that belongs to the phase's trm.preset; where that promises nothing, nothing is asked for.
    """

    order: bool = Field(True, description="each supervision step's validation loss is below the one before")
    refinement: float | Literal["preset"] | None = Field(
        "preset", description="least percent by which the last step's loss is below the first's"
    )
    gradient_norm: tuple[float, float] | Literal["preset"] | None = Field(
        "preset", description="band of the median gradient norm before clipping"
    )
    decreasing: bool = Field(True, description="the loss falls smoothly")
    utilisation: float | None = Field(80.0, ge=0, le=100, description="least mean GPU utilisation, percent; CPUs have none")

    @field_validator("gradient_norm", mode="before")
    @classmethod
    def _pair(cls, value: object) -> object:
        """YAML has lists, no tuples."""
        return tuple(value) if isinstance(value, list) else value

    @field_validator("gradient_norm")
    @classmethod
    def _ordered(cls, value: tuple[float, float] | str | None) -> tuple[float, float] | str | None:
        if isinstance(value, tuple) and not 0 <= value[0] < value[1]:
            raise ValueError("expected [lowest, highest], such as [0.5, 1.5]")
        return value


class Phase(Section):
    """One run of a recipe."""

    name: str = Field(pattern="^[a-z][a-z0-9_-]*$")
    description: str = ""
    set: dict[str, Any] = Field(
        default_factory=dict, description="keys of the recipe that differ in this phase, as sections or as key.path: value"
    )
    overridden: dict[str, Any] = Field(default_factory=dict, description="keys of `set` that --set replaced, with their values")
    gates: Gates | None = Field(None, description="must hold at the end of this phase before the next begins")
