"""Sudoku's measurements: names mean what was run, the recipe ships what was measured best, and a report can be completed."""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from windtunnel.model import recipe_shape
from windtunnel.recipe import load_recipe

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RESULTS = BENCHMARKS / "results"
SWEEPS = {"sudoku-sweep-h200.json": "VARIANTS", "sudoku-sweep-cpu.json": "TINY_VARIANTS"}


def module(monkeypatch: pytest.MonkeyPatch, name: str) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module(name)


def sets(keys: dict[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in keys.items()]


@pytest.mark.parametrize("file", SWEEPS)
def test_a_name_in_a_committed_result_is_what_the_variant_of_that_name_is_now(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variants = getattr(module(monkeypatch, "sudoku_variants"), SWEEPS[file])
    report = json.loads((RESULTS / file).read_text())
    assert report["results"]
    for name, result in report["results"].items():
        ran = report.get("recipe", {"values": {}})["values"] | result["keys"]
        assert {key: ran[key] for key in variants[name]} == {key: str(value) for key, value in variants[name].items()}, name


def test_variants_do_not_depend_on_what_the_recipe_ships_with(monkeypatch: pytest.MonkeyPatch) -> None:
    known = module(monkeypatch, "sudoku_variants")
    other = ["trm.supervision=3", "trm.updates=once", "trm.loops=7", "model.depth=4", "model.aspect=64", f"{known.BATCH}=8100"]
    for name, keys in known.VARIANTS.items():
        shipped, changed = (
            load_recipe("trm-sudoku", [*before, *sets(keys)]) for before in ((), other if "trm" not in keys else ())
        )
        assert shipped == changed, name


def test_the_recipe_ships_what_was_measured_best(monkeypatch: pytest.MonkeyPatch) -> None:
    best = module(monkeypatch, "sudoku_variants").VARIANTS["each-long"]
    shipped, measured = load_recipe("trm-sudoku"), load_recipe("trm-sudoku", sets(best))
    assert (shipped.model, shipped.trm, shipped.stages) == (measured.model, measured.trm, measured.stages)
    report = json.loads((RESULTS / "sudoku-h200.json").read_text())
    found = report["results"]["recursive"]
    shape = recipe_shape(shipped, 10)
    assert shape.parameters == found["parameters"]
    assert shape.flops_per_token * shape.sequence == found["flops_per_puzzle"]
    assert shipped.pretrain.batch_tokens == found["batch"] * shape.sequence
    assert shipped.budget.steps == pytest.approx(found["steps"], rel=0.01)


class Recorder:
    """In place of a `SudokuJob`: remembers what is to be trained, and gives the FLOPs of a model that was trained for so long."""

    def __init__(self, share: float = 1.0) -> None:
        self.share, self.asked = share, dict[str, Any]()

    def recipe(self, keys: dict[str, Any]) -> Any:
        return load_recipe("trm-sudoku", sets(keys))

    def train(self, name: str, keys: dict[str, Any]) -> dict[str, Any]:
        self.asked = keys
        recipe = self.recipe(keys)
        shape = recipe_shape(recipe, 10)
        steps = round(keys["budget.steps"] * self.share)
        return {
            "keys": keys, "parameters": 1, "flops": steps * recipe.pretrain.batch_tokens * shape.flops_per_token,
            "puzzles_seen": 1, "teraflops_per_second": 1.0,
            "evaluation": {"puzzles": {"kinds": [], "exact": {"share": 0.0, "low": 0.0, "high": 0.1, "n": 10}}},
        }  # fmt: skip


def test_the_plain_model_is_added_for_the_flops_of_the_recursive_result(monkeypatch: pytest.MonkeyPatch) -> None:
    sudoku = module(monkeypatch, "sudoku")
    there = json.loads((RESULTS / "sudoku-h200.json").read_text())["results"]
    there = {"recursive": there["recursive"]}
    args = argparse.Namespace(tiny=False, twin_minutes=None)
    job, kept = Recorder(0.25), list[dict[str, Any]]()
    sudoku.train_plain(job, args, 10, dict(there), kept.append)
    assert "budget.hours" not in job.asked
    assert set(kept[-1]) == {"recursive", "plain"}
    assert kept[-1]["recursive"] == there["recursive"]
    again = Recorder()
    sudoku.train_plain(again, args, 10, dict(kept[-1]), kept.append)
    assert set(kept[-1]) == {"recursive", "plain", "plain-0.25"}
    assert kept[-1]["plain-0.25"] == kept[0]["plain"]
    assert kept[-1]["plain"]["flops_share"] == pytest.approx(1, abs=1e-3)
    assert again.asked == job.asked


def test_a_plain_model_that_breaks_costs_no_result_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    sudoku = module(monkeypatch, "sudoku")

    class Broken(Recorder):
        def train(self, name: str, keys: dict[str, Any]) -> dict[str, Any]:
            raise sudoku.Failed("out of memory")

    args, kept = argparse.Namespace(tiny=False, twin_minutes=None), list[dict[str, Any]]()
    with pytest.raises(sudoku.Failed):
        sudoku.train_plain(Broken(), args, 10, {"recursive": {"flops": 1e12}, "plain": {"flops_share": 0.5}}, kept.append)
    assert not kept
    with pytest.raises(sudoku.Failed):
        sudoku.train_plain(Broken(), args, 10, {"recursive": {"flops": 1e12}}, kept.append)
    assert kept[-1]["plain"] == {"error": "out of memory"}


def test_every_twin_has_the_flops_that_the_recursive_model_had_and_as_many_averages(monkeypatch: pytest.MonkeyPatch) -> None:
    sudoku = module(monkeypatch, "sudoku")
    report = json.loads((RESULTS / "sudoku-h200.json").read_text())
    flops, updates = report["results"]["recursive"]["flops"], report["results"]["recursive"]["steps"] * 16
    args = argparse.Namespace(tiny=False, twin_minutes=None, most=None, twins=list(sudoku.TWINS))
    asked: dict[str, dict[str, Any]] = {}

    class Each(Recorder):
        def train(self, name: str, keys: dict[str, Any]) -> dict[str, Any]:
            asked[name] = keys
            return super().train(name, keys)

    kept = list[dict[str, Any]]()
    sudoku.train_twins(Each(), args, 10, {"recursive": report["results"]["recursive"]}, kept.append)
    for name in sudoku.TWINS:
        recipe = load_recipe("trm-sudoku", sets(asked[name]))
        assert recipe_shape(recipe, 10).applications == recipe.gpt.depth  # every layer once
        assert recipe.trm is not None
        assert (recipe.trm.ema, recipe.trm.halting) == (load_recipe("trm-sudoku").trm.ema, False)  # type: ignore[union-attr]
        assert kept[-1][name]["flops"] == pytest.approx(flops, rel=1e-3)
    assert asked["plain"]["budget.steps"] == pytest.approx(updates, rel=0.05)


def test_a_twin_that_breaks_costs_the_next_one_nothing_and_some_time_is_kept_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sudoku = module(monkeypatch, "sudoku")
    hours: dict[str, float] = {}

    class FirstBreaks(Recorder):
        def train(self, name: str, keys: dict[str, Any]) -> dict[str, Any]:
            hours[name] = keys["budget.hours"]
            if name == "plain":
                raise sudoku.Failed("out of memory")
            return super().train(name, keys)

    kept, recursive = list[dict[str, Any]](), {"flops": 1e13}
    args = argparse.Namespace(tiny=False, twin_minutes=None, most=460.0, twins=["plain", "plain-deep"])
    args.started = 1000.0
    monkeypatch.setattr(sudoku, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    with pytest.raises(sudoku.Failed, match="plain: out of memory"):
        sudoku.train_twins(FirstBreaks(), args, 10, {"recursive": recursive}, kept.append)
    assert kept[-1]["plain"] == {"error": "out of memory"}
    assert kept[-1]["plain-deep"]["flops"] > 0
    assert 3600 * hours["plain"] == pytest.approx(460 - sudoku.TWIN_SECONDS - sudoku.NEXT_SECONDS)
    assert 3600 * hours["plain-deep"] == pytest.approx(460 - sudoku.TWIN_SECONDS)  # the first took nothing
    args.started -= 440
    with pytest.raises(sudoku.Failed, match="plain-deep: no time left"):
        sudoku.train_twins(FirstBreaks(), args, 10, {"recursive": recursive}, kept.append)


def test_what_cannot_be_added_to_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sudoku = module(monkeypatch, "sudoku")
    assert sudoku.standing(RESULTS / "sudoku-h200.json")["results"]["recursive"]["steps"] == 797
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    for path, says in [
        (tmp_path / "none.json", "no report"),
        (broken, "no report"),
        (RESULTS / "sudoku-puzzles.json", "no recursive result"),
    ]:
        with pytest.raises(sudoku.Failed, match=says):
            sudoku.standing(path)
    with pytest.raises(sudoku.Failed, match="--tiny and --set"):
        sudoku.check_puzzles(broken, "one", "two")


def test_the_picture_in_the_docs_is_that_of_the_committed_report(monkeypatch: pytest.MonkeyPatch) -> None:
    chart = module(monkeypatch, "sudoku_chart")
    drawn = chart.draw(json.loads(chart.REPORT.read_text()))
    assert chart.OUT.read_text() == drawn, "draw it again: python benchmarks/sudoku_chart.py"
    ElementTree.fromstring(drawn)
    assert len(drawn) < 30_000


@pytest.mark.parametrize("share", [1e-4, 0.4, 0.999])
def test_the_picture_has_room_for_other_results(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is drawn outside, and names at the curves' ends do not cover one another."""
    chart = module(monkeypatch, "sudoku_chart")
    report = json.loads(chart.REPORT.read_text())
    plain = report["results"]["plain"]
    plain["evaluation"]["puzzles"]["exact"]["share"] = share
    plain["puzzles_seen"] *= 2
    report["results"]["plain-deep"] = json.loads(json.dumps(plain))
    plain["curves"]["loss"] = [(2 * step, share * value) for step, value in plain["curves"]["loss"]]
    places = [element.attrib for element in ElementTree.fromstring(chart.draw(report)).iter() if element.tag.endswith("text")]
    assert all(0 < float(a["x"]) < chart.WIDTH and 0 < float(a["y"]) < chart.HEIGHT for a in places)
    ends = sorted(float(a["y"]) for a in places if float(a["x"]) == 384)
    assert len(ends) == 4
    assert all(below - above > 14.8 for above, below in pairwise(ends))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_report_is_completed_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "tiny.json"
    command = [sys.executable, str(BENCHMARKS / "sudoku.py"), "--tiny", "--set", "data.corpus.puzzles=2000", "--out", str(out)]
    subprocess.run([*command, "--steps", "4", "--twin-minutes", "0"], check=True, timeout=400)
    first = json.loads(out.read_text())
    assert set(first["results"]) == {"recursive"}
    subprocess.run([*command, "--plain-only"], check=True, timeout=400)
    whole = json.loads(out.read_text())
    assert whole["results"]["recursive"] == first["results"]["recursive"]
    assert whole["puzzles"] == first["puzzles"]
    assert whole["command"] == first["command"]
    assert "--plain-only" in whole["completed"]["command"]
    assert whole["results"]["plain"]["flops_share"] == pytest.approx(1, abs=0.06)  # whole steps, of which there are ten
