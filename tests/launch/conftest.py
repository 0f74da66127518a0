"""Fixtures of the launching tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from stages_job import TWO, StagesJob

from windtunnel.launch import stages
from windtunnel.recipe import Recipe, load_recipe


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    path = tmp_path / "two.yaml"
    path.write_text(TWO)
    return load_recipe(path)


@pytest.fixture
def job(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StagesJob:
    made = StagesJob(recipe, tmp_path / "runs")
    monkeypatch.setattr(stages, "train_run", made.train)
    return made
