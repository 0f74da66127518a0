"""A job of two stages whose trainer only writes down what it was asked for, for tests of what runs after what."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from windtunnel.launch import Options, StageReport, run_stages
from windtunnel.recipe import Recipe, UserError
from windtunnel.run import Metrics, RunFolder, list_runs

AGAIN = "windtunnel train two.yaml"
TWO = """\
name: two
model: {depth: 1, aspect: 32, head_dim: 32, sequence: 32}
data:
  corpus: {kind: arithmetic, documents: 2000}
  validation: 0.05
stages:
  first:
    kind: pretrain
    batch_tokens: 512
    validate_every: 20 steps
    validation_tokens: 2000
    optimizer: {matrix_lr: 0.01}
    budget: {steps: 40}
    gates: {}
  second:
    kind: pretrain
    init_from: random
    batch_tokens: 512
    validate_every: 20 steps
    validation_tokens: 2000
    optimizer: {matrix_lr: 0.01}
    budget: {steps: 20}
    set:
      model.depth: 2
  evaluate: {samples: 0}
"""


class Silent:
    """A view that only remembers what was said."""

    def __init__(self, said: list[str]) -> None:
        self.said = said

    def update(self, snapshot: Any) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        self.said.append(text)

    def close(self) -> None:
        """Nothing."""


@dataclass
class StagesJob:
    """Runs the stages with a trainer that only writes down what was asked for and a loss that falls, or not."""

    recipe: Recipe
    root: Path
    falls: bool = True
    codes: list[int] = field(default_factory=list)
    seconds: float = 3600.0
    started: list[tuple[str | None, Path | None]] = field(default_factory=list)
    recipes: list[Recipe] = field(default_factory=list)
    reports: list[StageReport] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def train(self, recipe: Recipe, options: Options, view: Any, **_: Any) -> tuple[int, Path]:
        self.started.append((recipe.stage, options.run))
        self.recipes.append(recipe)
        code = self.codes.pop(0) if self.codes else 0
        run = RunFolder.open(options.run, recipe, write=True) if options.run else None
        if run is None:
            run = RunFolder.create(self.root, recipe, rig={"gpu": None}, plan={"layout": {"batch_tokens": 512}})
            if options.before is not None:
                run.update(before=dict(options.before))
        with run, Metrics(run.metrics_path) as metrics:
            for step in range(1, 41):
                metrics.log(step, {"loss": 3.0 - (step if self.falls else -step) / 100})
            run.spent_path.write_text(json.dumps({"seconds": self.seconds, "dollars": 10.0}))
            run.update(exit_code=code)
            run.finish("done" if code == 0 else "stopped", "test")
        return code, run.path

    def go(self, stage: str | None = None, **options: Any) -> int:
        self.started.clear()
        self.recipes.clear()
        return run_stages(
            self.recipe,
            Options(root=self.root, yes=True, price=1.0, **options),
            lambda: Silent(self.said),
            self.reports.append,
            stage=stage,
            again=AGAIN,
        )

    @property
    def names(self) -> list[str | None]:
        return [name for name, _ in self.started]


def refused(job: StagesJob, stage: str | None = None, **options: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        job.go(stage, **options)
    assert caught.value.exit_code == 2
    assert not job.started
    return caught.value


def only(job: StagesJob, stage: str) -> Path:
    (path,) = [run.path for run in list_runs(job.root) if run.stage == stage]
    return path
