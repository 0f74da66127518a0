"""FLOPs-matched baselines measured on text: the picture is that of the report, and curves are kept of what has ended."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
REPORT = json.loads((BENCHMARKS / "results" / "flop-matched-h200.json").read_text())


def module(monkeypatch: pytest.MonkeyPatch, name: str) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module(name)


def with_curves(ends: float = 1.0) -> dict[str, Any]:
    """The committed report with curves that fall to its losses, times `ends`."""
    found, curves = json.loads(json.dumps(REPORT)), {}
    for model in found["report"]["models"]:
        steps, last = model["step_losses"], model["loss"]["value"] * ends
        series = {"validation_loss": [(n, last + 4 * math.exp(-n / 70)) for n in range(32, 357, 32)]}
        for i, loss in enumerate(steps):
            series[f"validation_loss_step_{i}"] = [(n, y + loss - steps[-1]) for n, y in series["validation_loss"]]
        curves[model["name"]] = {"flops_per_step": 9e12 * model["flops"], "step_seconds": 20.0, "series": series}
    return found | {"curves": curves}


def test_the_picture_is_that_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    chart = module(monkeypatch, "flop_matched_chart")
    page = (BENCHMARKS.parent / "docs" / "flop-matched.md").read_text("utf-8")
    assert ("](flop-matched.svg)" in page) == bool(REPORT.get("curves"))
    if REPORT.get("curves"):
        assert chart.OUT.read_text("utf-8") == chart.draw(REPORT), "draw it again: python benchmarks/flop_matched_chart.py"
    else:
        with pytest.raises(SystemExit, match="no curves"):
            chart.draw(REPORT)


@pytest.mark.parametrize("ends", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("left_out", [(), ("recurrence-6", "between")])
def test_the_picture_has_room_for_other_results(ends: float, left_out: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model is drawn and named, nothing outside."""
    chart, report = module(monkeypatch, "flop_matched_chart"), with_curves(ends)
    models = [model for model in report["report"]["models"] if model["name"] not in left_out]
    report["report"]["models"] = models
    drawn = list(ElementTree.fromstring(chart.draw(report)).iter())
    texts = [element for element in drawn if element.tag.endswith("text")]
    assert all(0 < float(a.attrib["x"]) < chart.WIDTH and 0 < float(a.attrib["y"]) < chart.HEIGHT for a in texts)
    assert len([a for a in drawn if a.tag.endswith("polyline")]) == len(models) + 3  # and steps 0 to 2 beside
    words = {a.text for a in texts}
    assert {"recursive, 12x", "same FLOPs", "same parameters", "step 0", "step 1", "step 2"} <= words
    assert ("in between" in words) == ("between" not in left_out)
    assert ("6x" in words) == ("recurrence-6" not in left_out)


def test_each_plain_model_and_what_training_took_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    report = with_curves() | {"settings": {"preset": "honest", "shared": False}}
    same = next(model for model in report["report"]["models"] if model["name"] == "same-parameters")
    same |= {"flops": 0.096, "behind": {"value": -0.1121, "low": -0.1276, "high": -0.0986}}
    text = module(monkeypatch, "pages_flop_matched").flop_matched(report)
    assert "of the same parameters, at 0.10 of the FLOPs, is better by 0.112 nats (95 % 0.099 to 0.128)." in text
    same["behind"] = {"value": 0.01, "low": -0.02, "high": 0.03}
    again = module(monkeypatch, "pages_flop_matched").flop_matched(report)
    assert "cannot be told from the recursive one (-0.020 to +0.030)" in again
    assert f"training took {REPORT['report']['models'][0]['trained']['seconds']:.0f} seconds" in text
    tokens = REPORT["report"]["steps"] * REPORT["report"]["batch_tokens"]
    assert f"{tokens / 1e6:.1f} M in all" in text
    assert "](flop-matched.svg)" in text
    assert "Other work was on the GPU" not in text
    mixed = with_curves()
    mixed["report"]["models"][0]["step_losses"] = [2.8, 2.7, 2.71, 2.7]
    assert "2.800, 2.700, 2.710, 2.700 nats" in module(monkeypatch, "pages_flop_matched").flop_matched(mixed)


ENDLESS = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


@pytest.mark.parametrize(
    ("child", "words"), [(ENDLESS, "evaluate: not done after 0 s"), ("import sys; sys.exit(2)", "evaluate ended with 2")]
)
def test_a_command_that_is_stopped_or_breaks_leaves_nothing_running(
    child: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark, started = module(monkeypatch, "flop_matched"), []

    def start(_: Any, **options: Any) -> Any:
        started.append(subprocess.Popen([sys.executable, "-c", child], **options))
        return started[-1]

    monkeypatch.setattr(benchmark, "REPORT_SECONDS", 0.3)
    monkeypatch.setattr(benchmark, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": start}))
    with pytest.raises(benchmark.OutOfTime, match=words):
        benchmark.windtunnel(tmp_path, "evaluate", seconds=0.1 if child is ENDLESS else None)
    assert started[0].poll() is not None


def test_curves_keep_their_last_point(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = module(monkeypatch, "flop_matched")
    for count in (1, 119, 121, 1000):
        points = [(i, 1 / (i + 1)) for i in range(count)]
        kept = benchmark.thinned(points)
        assert kept[-1][0] == count - 1
        assert 0 < len(kept) <= benchmark.MOST_POINTS
