"""What a rehearsal knows so far: each check reads what earlier ones found and leaves what it found itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.plan import Plan
from windtunnel.recipe import Recipe
from windtunnel.rig import Rig

if TYPE_CHECKING:
    from windtunnel.data import PreparedData
    from windtunnel.evaluate import EvaluationReport


@dataclass
class Rehearsal:
    """A rehearsal under way.

    Attributes:
        recipe: as the user gave it. scale: its scale model.
        folder: everything the rehearsal writes.
        here: this machine. targets: the rigs to be ready for.
        plan_here, plans: of the recipe, here and by target's name.
        data: the scale model's. corpus: (vocabulary, training tokens) of the recipe's own data, once read.
        run: the run that was killed and resumed. reference: the one that was not.
        resumed_from: the step the killed run went on from. memory: (step, GiB) of each training process and its children.
    """

    recipe: Recipe
    scale: Recipe
    folder: Path
    here: Rig
    targets: list[Rig]
    plan_here: Plan | None = None
    plans: dict[str, Plan] = field(default_factory=dict)
    data: PreparedData | None = None
    corpus: tuple[int, int] | None = None
    run: Path | None = None
    reference: Path | None = None
    resumed_from: int = 0
    memory: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    evaluation: EvaluationReport | None = None
    environment: list[tuple[str, str]] = field(default_factory=list)

    @property
    def recipe_file(self) -> Path:
        """The scale model as a recipe that `windtunnel train` takes."""
        return self.folder / "scale.yaml"

    @property
    def log(self) -> Path:
        """Tracebacks of checks that failed unexpectedly."""
        return self.folder / "rehearsal.log"

    @property
    def device(self) -> str:
        """What the scale model runs on here."""
        return "cuda" if self.here.gpu else "cpu"
