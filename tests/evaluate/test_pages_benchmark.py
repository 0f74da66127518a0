"""Tables in the docs are those of the committed reports."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("pages")


@pytest.mark.parametrize("page", ["sudoku.md", "trm.md", "flop-matched.md"])
def test_a_page_has_what_the_committed_reports_say(page: str, pages: Any) -> None:
    text = (pages.DOCS / page).read_text("utf-8")
    assert pages.replaced(page, text) == text, "write it again: python benchmarks/pages.py"


def test_a_page_without_a_place_for_a_block_is_refused(pages: Any) -> None:
    with pytest.raises(ValueError, match="no place for flop-matched-h200"):
        pages.replaced("flop-matched.md", "# FLOPs-matched baselines\n")


def test_fewer_flops_and_a_broken_twin_are_said(pages: Any) -> None:
    report = json.loads((BENCHMARKS / "results" / "sudoku-h200.json").read_text())
    recursive, plain = report["results"]["recursive"], report["results"]["plain"]
    twin = {"keys": plain["keys"] | {"trm": "null"}}
    results = {
        "recursive": recursive,
        "plain": plain | twin | {"flops_share": 0.999},
        "plain-0.31": plain | {"flops_share": 0.31},
    }
    text = pages.sudoku(report | {"results": results | {"plain-deep": {"error": "out of memory"}}})
    assert "Equal FLOPs: plain." in text
    assert "plain-0.31 had 0.31 of them" in text
    assert "`plain-deep` broke: out of memory" in text
    assert text.count("12 layers of 384") == 2


def interval(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.01, "high": value + 0.01}


def test_a_comparison_is_told_with_its_verdict_and_what_is_missing(pages: Any) -> None:
    row = {"role": "this run, 12x", "layers": 6, "dim": 384, "parameters": 16.9e6, "flops": 1.0, "loss": interval(2.0),
           "behind": interval(0.0), "bits_per_byte": 0.9, "step_losses": [2.2, 2.1, 2.0]}  # fmt: skip
    twin = row | {"role": "plain, same FLOPs", "loss": interval(1.9), "behind": interval(-0.1), "step_losses": []}
    phi = {"value": 0.2, "bound": "<=", "low": None, "high": 0.3, "words": "r = 12 is worse than the smallest"}
    report = {"models": [row, twin], "verdict": "The plain model is better.", "phi": phi, "steps": 800, "batch_tokens": 8192,
              "notes": ["one"], "left_out": ["between"]}  # fmt: skip
    head = {"machine": {"gpu": "NVIDIA H200"}, "date": "2026-11-21T20:00", "settings": {"preset": "honest"}}
    text = pages.flop_matched(head | {"data": {"train_tokens": 3_276_800}, "report": report})
    assert "2.0 times over" in text
    assert text.index("plain, same FLOPs") < text.index("| this run, 12x")  # the best first
    for words in ("The plain model is better.", "phi ≤ 0.20", "no time for: between", "2.200 > 2.100 > 2.000", "- one"):
        assert words in text
    assert "Not measured" not in text
    without = pages.flop_matched(head | {"data": {"train_tokens": 1}, "report": report | {"left_out": []}})
    assert "no time" not in without
