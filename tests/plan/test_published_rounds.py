"""Plans of GRPO rounds beside those that others have published."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("WINDTUNNEL_CALIBRATION", raising=False)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import published_rounds

    return published_rounds


def test_plans_are_near_published_rounds(rounds: ModuleType) -> None:
    """Of 29 rounds of three releases; constants were chosen by the ten of one of them."""
    published, _ = rounds.load_rounds()
    rows = [rounds.compare(row) for row in published]
    assert all("refused" not in row for row in rows)
    held_out = rounds.summarise([row for row in rows if row["half"] == "held out"])
    overlapped = rounds.summarise([row for row in rows if row["ahead"]])
    assert held_out["rows"] == 19
    assert held_out["median"] < 0.25
    assert abs(overlapped["bias"]) < 0.1


def test_the_committed_comparison_is_of_the_plans_of_today(rounds: ModuleType) -> None:
    committed = {
        (row["release"], row["rig"], row["model"], row["ahead"]): row for row in json.loads(rounds.REPORT.read_text())["rows"]
    }
    for row in rounds.load_rounds()[0]:
        keys = row.keys
        known = committed[keys["release"], keys["rig"], keys["model"], keys["ahead"]]
        assert rounds.compare(row)["planned_seconds"] == pytest.approx(known["planned_seconds"], rel=1e-6)
