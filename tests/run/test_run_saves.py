"""What saving has cost in a run: read from its own steps and events."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.recipe import load_recipe
from windtunnel.run import Metrics, RunFolder, measured_saves, saves_of


def run_with(root: Path, monkeypatch: pytest.MonkeyPatch, saves: dict[int, float], slower: float) -> Path:
    """A run of 40 steps of a second, saved after some steps in so many seconds, during which each step takes longer."""
    clock = 1000.0
    monkeypatch.setattr("windtunnel.run.metrics.time.time", lambda: clock)
    with RunFolder.create(root, load_recipe("charlm"), rig={}) as run, Metrics(run.metrics_path) as metrics:
        ends: list[tuple[float, int, float]] = []
        for step in range(1, 41):
            took = 1.0 + (slower if ends else 0.0)
            clock += took
            metrics.log(step, {"step_seconds": took})
            for end in [end for end in ends if end[0] <= clock]:
                metrics.event("checkpoint", end[1], f"saved step-{end[1]:08d}: 64.0 MiB in {end[2]:.2f} s")
                ends.remove(end)
            if step in saves:
                ends.append((clock + saves[step], step, saves[step]))
        return run.path


def test_a_save_costs_what_steps_took_longer_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = saves_of(run_with(tmp_path, monkeypatch, {10: 3.0, 20: 3.0, 30: 3.0}, slower=0.25))
    assert found is not None
    assert (found.count, found.mib, found.seconds) == (3, 64.0, 3.0)
    assert found.stall == pytest.approx(3 * 0.25)
    assert measured_saves(tmp_path, "charlm") == found
    assert measured_saves(tmp_path, "grpo") is None


def test_a_save_that_holds_nothing_up_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = saves_of(run_with(tmp_path, monkeypatch, {10: 3.0}, slower=0.0))
    assert found is not None
    assert found.stall == 0.0


def test_a_run_without_saves_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert saves_of(run_with(tmp_path, monkeypatch, {}, slower=0.0)) is None
    assert saves_of(tmp_path / "nothing") is None
