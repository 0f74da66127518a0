"""The measurement of the recipe `kernels`: what it reads of runs and evaluations, and all of it with a random model."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("kernels")


def share(right: int, **more: Any) -> dict[str, Any]:
    return {
        "metric": "kernel",
        "share": right / 64,
        "right": right,
        "n": 64,
        "low": 0.1,
        "high": 0.9,
        "cut": 0,
        "unknown": 0,
        **more,
    }


def test_before_and_after_are_the_evaluations_and_else_what_the_stage_asked(kernels: Any) -> None:
    own = {"held_out": [{"step": 0, **share(1)}, {"step": 8, **share(2)}, {"step": 9, **share(3)}]}
    assert kernels.held_out({"rl": own})["rl"] == {"before": own["held_out"][0], "after": own["held_out"][2]}
    said = {"step": 9, "answers": share(60, wrong=["text"]), "untuned": {"answers": share(50), "gain": {"difference": 0.1}}}
    asked = kernels.evaluation_of(said)
    assert asked == {"step": 9, "after": share(60), "before": share(50), "gain": {"difference": 0.1}}
    assert kernels.held_out({"rl": own, "rl-evaluation": asked})["rl"] == {"before": share(50), "after": share(60)}
    assert kernels.held_out({"sft": {"held_out": [{"step": 8, **share(2)}]}})["sft"]["before"] is None
    assert kernels.held_out({"sft": {"ended": "left out"}, "sft-evaluation": kernels.evaluation_of({})}) == {}


def test_the_last_object_of_an_output_is_found(kernels: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert kernels.last_json(out) == {}
    out.write_text('a word\n{"a": 1}\n{\n "b": 2\n}\n')
    assert kernels.last_json(out) == {"b": 2}
    out.write_text("a word\n")
    assert kernels.last_json(out) == {}


def test_medians_of_rounds_leave_the_first_out(kernels: Any) -> None:
    names = ("step_seconds", "generating_seconds", "judging_seconds", "learning_seconds")
    series = {name: {step: float(step) for step in (1, 2, 4)} for name in names} | {"reward": {1: 0.5}}
    series["learning_seconds"].pop(4)  # of the last round not everything is written yet
    rounds = kernels.rounds_of(series)["rounds"]
    assert [one["step"] for one in rounds["each"]] == [1, 2]
    assert (rounds["counted"], rounds["seconds"], rounds["each"][0]["reward"]) == (1, 2.0, 0.5)


@pytest.mark.slow
def test_a_random_model_goes_through_all_parts(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "kernels.py"), "--tiny", "--cpu", "--out", "out.json", "--root", "runs"]
    cache = {"WINDTUNNEL_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [*command, "--problems", "3"], cwd=tmp_path, env=os.environ | cache, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    parts = found["parts"]
    assert {name: part["ended"] for name, part in parts.items()} == dict.fromkeys(parts, "exit code 0")
    assert set(found["held_out"]) == {"sft", "rl"}
    for stage in ("sft", "rl"):
        assert found["held_out"][stage]["before"]["n"] == found["held_out"][stage]["after"]["n"] == 3
        assert parts[stage]["steps"] > 1
        assert parts[stage]["peak_gb"] > 0
    rounds = parts["rl"]["rounds"]
    assert set(rounds["parts"]) == {"weights", "generating", "judging", "learning", "rest"}
    assert sum(rounds["each"][0]["parts"].values()) == pytest.approx(rounds["each"][0]["seconds"])
    assert all("train_tokens" in data for data in parts["prepare"]["data"])
