"""The experiment that chooses a preset: its candidates are comparable, and its rule does not take noise for a result."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def presets(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("presets")


def test_the_picture_in_the_docs_is_that_of_the_committed_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    chart = importlib.import_module("text_chart")
    drawn = chart.draw(*(json.loads(path.read_text()) for path in (chart.PRESETS, chart.PHASE)))
    assert chart.OUT.read_text() == drawn, "draw it again: python benchmarks/text_chart.py"
    ElementTree.fromstring(drawn)


def result(*losses: float, kind: str = "preset") -> dict[str, Any]:
    return {"kind": kind, "runs": [{"seed": seed, "loss": loss} for seed, loss in enumerate(losses)]}


def test_all_candidates_take_the_same_flops_but_the_one_that_says_so(presets: Any) -> None:
    jobs = {name: presets.make_job(name, presets.TINY, 100) for name in presets.CANDIDATES}
    flops = {name: job.flops / jobs["equal"].flops for name, job in jobs.items()}
    assert flops.pop("plain-parameters") < 0.5
    assert all(abs(share - 1) < 0.03 for share in flops.values()), flops
    assert jobs["supervision-2"].shape.applications == jobs["equal"].shape.applications


def test_candidates_of_equal_weights_differ_in_what_they_name_only(presets: Any) -> None:
    equal, detached, plain = (presets.make_job(n, presets.TINY, 100).recipe for n in ("equal", "detach-2", "plain-flops"))
    assert detached.trm.resolved.detach_from == 2
    assert detached.model_copy(update={"trm": equal.trm}) == equal
    assert plain.trm is None
    assert plain.pretrain.optimizer == equal.pretrain.optimizer


def test_a_clear_gain_is_decided_and_a_small_one_is_not(presets: Any) -> None:
    clear = presets.verdict({"equal": result(2.0, 2.02), "base-2": result(1.9, 1.91)})
    assert (clear["winner"], clear["decided"]) == ("base-2", True)
    small = presets.verdict({"equal": result(2.0, 2.2), "base-2": result(1.9, 2.1)})
    assert (small["lowest"], small["winner"], small["decided"]) == ("base-2", "equal", False)


def test_one_seed_decides_nothing_and_a_missing_seed_leaves_a_candidate_out(presets: Any) -> None:
    assert not presets.verdict({"equal": result(2.0), "base-2": result(1.0)})["decided"]
    found = presets.verdict({"equal": result(2.0, 2.0), "base-2": result(1.0)})
    assert (found["lowest"], found["not_all_seeds"]) == ("equal", ["base-2"])


def test_more_updates_must_also_beat_as_many_by_smaller_batches(presets: Any) -> None:
    both = {"equal": result(2.0, 2.0), "each": result(1.5, 1.5)}
    assert not presets.verdict(both)["decided"]
    assert not presets.verdict(both | {"equal-parts": result(1.4, 1.4, kind="other")})["decided"]
    assert presets.verdict(both | {"equal-parts": result(1.8, 1.8, kind="other")})["winner"] == "each"


def test_a_diverged_candidate_never_wins(presets: Any) -> None:
    assert presets.verdict({"equal": result(2.0, 2.0), "double": result(float("nan"), 1.0)})["lowest"] == "equal"
