"""What every stage of a recipe has: its weights to begin with, its length, and the gates at its end."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import Field, field_validator

from .section import Count, Dollars, Hours, Pair, Section

NAME = r"^[a-z][a-z0-9_-]{0,99}$"
Attention: TypeAlias = Literal["auto", "flash4", "varlen", "flex", "split", "mask"]


class Budget(Section):
    """The run ends at whichever limit comes first. All null: tokens_per_parameter decides."""

    dollars: Dollars | None = Field(None, gt=0, description="$ for the whole rig, start-up and waiting included")
    hours: Hours | None = Field(None, gt=0, description="h of wall time, start-up included")
    tokens: Count | None = Field(None, ge=1, description="tokens trained on, repeated ones counted again")
    epochs: float | None = Field(None, gt=0, description="times that the training data are seen")
    steps: int | None = Field(None, ge=1, description="optimizer steps")
    # Not written into a run's recipe: it only serves the note on which of two limits stands.
    replaced: dict[str, Any] = Field(
        default_factory=dict, exclude=True, description="limits that were inherited, and gave way to those named instead"
    )


class Gates(Section):
    """What a stage's run must have shown before the next stage may spend money. null: not asked for.

    'preset' is the limit that belongs to the stage's trm.preset; where that promises nothing, nothing is asked for.
    """

    order: bool = Field(True, description="each supervision step's validation loss is below the one before")
    refinement: float | Literal["preset"] | None = Field(
        "preset", description="least percent by which the last step's loss is below the first's"
    )
    gradient_norm: Pair | Literal["preset"] | None = Field(
        "preset", description="band of the median gradient norm before clipping"
    )
    decreasing: bool = Field(True, description="the loss falls smoothly")
    utilisation: float | None = Field(80.0, ge=0, le=100, description="least mean GPU utilisation, percent; CPUs have none")
    validation_loss: float | None = Field(None, gt=0, description="most validation loss of the best checkpoint, nats a token")
    answers: float | None = Field(None, ge=0, le=1, description="least share of held-out answers that are right at their best")

    @field_validator("gradient_norm")
    @classmethod
    def _ordered(cls, value: tuple[float, float] | str | None) -> tuple[float, float] | str | None:
        if isinstance(value, tuple) and not 0 <= value[0] < value[1]:
            raise ValueError("expected [lowest, highest], such as [0.5, 1.5]")
        return value


class Stage(Section):
    """What every stage has."""

    # The mapping's key, put in by `stages.complete`: whoever holds a stage knows its name without the recipe.
    name: str = Field("", exclude=True, description="the key under `stages`; not written inside the section")
    description: str = Field("", description="one line for people, printed with the stage's plan")


class TrainingStage(Stage):
    """What every stage that trains has."""

    kind: str
    init_from: str | None = Field(
        None,
        min_length=1,
        description="weights to begin with: 'previous' (the stage before), 'random', a run's name or folder, a folder of "
        "weights, or the name of a model that was fetched (windtunnel fetch NAME); null: previous, or of the first stage the "
        "model's own where it has some",
    )
    budget: Budget = Field(Budget(), description="limits of this stage, beside those of the whole recipe")
    share: float | None = Field(
        None, gt=0, le=1, description="most of the recipe's dollars and hours that this stage may take; null: what is left"
    )
    gates: Gates | None = Field(None, description="must hold at the end of this stage before the next begins")
    set: dict[str, Any] = Field(
        default_factory=dict,
        description="keys of the recipe outside `stages` that differ in this stage, as sections or as key.path: value",
    )
    # Kept, so that the notes can say what --set has replaced: a stage's own value might otherwise seem to be in force.
    overridden: dict[str, Any] = Field(default_factory=dict, description="this stage's own values that --set replaced")

    @property
    def differs(self) -> bool:
        """Whether it has more than the recipe says: gates, limits of its own, or keys that it sets."""
        return bool(self.gates or self.set or self.share or self.budget != Budget())


class Schedule(Section):
    """The learning rate over the run's progress: linear warm-up, constant, linear warm-down."""

    warmup_steps: int = Field(40, ge=0, description="over which the learning rate rises to its peak")
    warmdown: float = Field(0.65, ge=0, le=1, description="share of the run spent warming down")
    final: float = Field(0.05, ge=0, le=1, description="learning rate at the end, as a share of the peak")
