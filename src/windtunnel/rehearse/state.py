"""What a rehearsal knows so far: each stage reads what earlier ones found and leaves what it found itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.check import Check
from windtunnel.rig import cpu_cores

from .context import Context

if TYPE_CHECKING:
    from windtunnel.evaluate import EvaluationReport


def _free_cores() -> int:
    """Cores that are not busy now, at least one. A small model is several times slower on threads that wait for a core."""
    try:
        busy = os.getloadavg()[0]
    except OSError:
        busy = 0.0
    return max(1, round(cpu_cores() - busy))


@dataclass
class Rehearsal(Context):
    """A rehearsal under way: what its checks share, and what its stages add.

    Attributes:
        run: the run that was killed and resumed. reference: the one that was not.
        threads: of a training process on the CPU; one number for all, since it decides the order of sums.
        resumed_from: the step the killed run went on from. memory: (step, GiB) of each training process and its children.
    """

    run: Path | None = None
    reference: Path | None = None
    resumed_from: int = 0
    threads: int = field(default_factory=_free_cores)
    memory: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    evaluation: EvaluationReport | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What the environment of its training processes has besides this one's."""
        given = self.here.gpu is not None or "OMP_NUM_THREADS" in os.environ
        return {} if given else {"OMP_NUM_THREADS": str(self.threads)}

    @property
    def recipe_file(self) -> Path:
        """The scale model as a recipe that `windtunnel train` takes."""
        return self.folder / "scale.yaml"


def is_gpt(context: Context) -> bool:
    """Whether the scale model of the recipe can be trained here: it is a GPT, on data that is there."""
    return context.is_gpt and context.has_data


def has_text(context: Context) -> bool:
    """The same, and the data are text."""
    return is_gpt(context) and context.has_text


# A stage runs here: it starts processes of its own, follows them, and leaves what it made for the next stages.
Stage: Callable[..., Check] = partial(Check, apart=False, applies=is_gpt)
