"""The ledger: every dollar of every run is in exactly one month and one group, and budgets are held against them."""

from __future__ import annotations

import calendar
import json
import math
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.cli.start import main
from windtunnel.recipe import UserError, load_recipe
from windtunnel.run import Metrics, RunFolder, parse_limit, read_ledger, read_limits, standings, sums

PROVIDERS = {"8xH100": "runpod"}
OCTOBER, NOVEMBER = (calendar.timegm((2026, month, 20, 0, 0, 0)) for month in (10, 11))


def make(root: Path, rig: str, spent: float, times: list[tuple[float, float]], *, ends: bool = True) -> RunFolder:
    """A run whose dollars (time, so far) are these, and that recorded `spent` in all."""
    plan = {"hours": 2.0, "dollars": 5.0, "dollars_per_hour": 2.5}
    run = RunFolder.create(
        root, load_recipe("charlm", ["model.depth=2"]), rig={"name": rig, "provider": PROVIDERS.get(rig)}, plan=plan
    )
    with Metrics(run.metrics_path) as metrics:
        for step, (_, dollars) in enumerate(times, start=1):
            metrics.log(step, {"dollars": dollars, "dollars_forecast": 9.0})
    with sqlite3.connect(run.metrics_path) as database:
        for step, (when, _) in enumerate(times, start=1):
            database.execute("UPDATE points SET time = ? WHERE step = ?", (when, step))
    run.spent_path.write_text(json.dumps({"seconds": 3600.0, "dollars": spent}))
    if ends:
        run.finish("done", "budget.hours")
        run.close()
    return run


def test_dollars_go_to_the_month_they_were_spent_in(tmp_path: Path) -> None:
    make(tmp_path, "8xH100", 8.0, [(OCTOBER, 1.0), (OCTOBER + 60, 3.0), (NOVEMBER, 7.0)])
    make(tmp_path, "1xH200", 2.0, [(NOVEMBER, 1.5)])
    entries = read_ledger([tmp_path])
    assert {line.name: line.dollars for line in sums(entries, "month")}.items() >= {"2026-10": 3.0}.items()
    for kind in ("month", "recipe", "rig", "provider", "folder"):
        assert math.isclose(sum(line.dollars for line in sums(entries, kind)), 10.0)  # type: ignore[arg-type]
    assert [line.name for line in sums(entries, "rig")] == ["8xH100", "1xH200"]  # the dearest first
    assert [(line.name, line.dollars) for line in sums(entries, "provider")] == [("runpod", 8.0), ("not told", 2.0)]
    (runpod,) = standings(entries, [parse_limit("provider:runpod=9")])
    assert (runpod.spent, runpod.level) == (8.0, "warn")  # past 80 %


@given(st.lists(st.tuples(st.floats(0, 4e7), st.floats(0, 50)), max_size=8), st.floats(0.01, 100))
@settings(deadline=None, max_examples=12)
def test_months_add_up_to_what_was_spent(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[float, float]], spent: float
) -> None:
    """Also where a run went back, and its record is behind or ahead of its curve."""
    root = tmp_path_factory.mktemp("ledger")
    make(root, "8xH100", spent, [(OCTOBER + when, dollars) for when, dollars in steps])
    (entry,) = read_ledger([root])
    assert math.isclose(sum(entry.months.values()), spent, abs_tol=1e-6)


def test_what_still_runs_counts_as_expected(tmp_path: Path) -> None:
    with make(tmp_path, "8xH100", 2.0, [(NOVEMBER, 2.0)], ends=False):
        entries = read_ledger([tmp_path])
        assert entries[0].ahead == 7.0
        levels = {}
        for text in ("total=1", "total=2.4", "8", "rig:8xh100=100", "recipe:other=1"):
            (stands,) = standings(entries, [parse_limit(text)])
            levels[text] = stands.level
        assert levels == {"total=1": "over", "total=2.4": "warn", "8": "warn", "rig:8xh100=100": "ok", "recipe:other=1": "ok"}
    month = standings(entries, [parse_limit("month=3"), parse_limit("month:2026-10=3")], now=NOVEMBER)
    assert [each.spent for each in month] == [2.0, 0.0]


@pytest.mark.parametrize("text", ["", "none", "-3", "nan", "week=3", "recipe=3", "total:x=3", "rig:8xH100"])
def test_a_budget_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        parse_limit(text)


def test_budgets_of_a_folder_are_read(tmp_path: Path) -> None:
    assert read_limits(tmp_path) == []
    (tmp_path / "budgets.yaml").write_text('{total: 5000, recipe: {charlm: "$1,500"}}')
    assert [(limit.kind, limit.name, limit.dollars) for limit in read_limits(tmp_path)] == [
        ("total", "", 5000.0),
        ("recipe", "charlm", 1500.0),
    ]
    for bad in ("[1]", "{total: lots}", "{year: 3}", "{"):
        (tmp_path / "budgets.yaml").write_text(bad)
        with pytest.raises(UserError, match=r"budgets\.yaml"):
            read_limits(tmp_path)


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, "8xH100", 8.0, [(OCTOBER, 3.0), (NOVEMBER, 8.0)])

    def verb(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["ledger", str(tmp_path), *arguments])
        return int(ended.value.code or 0), capsys.readouterr().out

    code, out = verb("--by", "month", "--budget", "9")
    assert (code, "2026-10" in out, "warn: budget of total: $8.00 of $9.00 spent (89%)" in out) == (0, True, True)
    code, out = verb("--budget", "recipe:charlm=7")
    assert (code, "over: budget of recipe charlm" in out) == (1, True)
    code, out = verb("--by", "run", "--json")
    assert json.loads(out)["runs"][0]["dollars"] == 8.0


def test_a_run_without_a_price_is_told_with_options_that_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunFolder.create(tmp_path, load_recipe("charlm", ["model.depth=2"]), rig={"name": "cpu"}, plan={"hours": 2.0})
    run.spent_path.write_text(json.dumps({"seconds": 7200.0, "dollars": 0.0}))
    run.finish("done", "budget.hours")
    run.close()
    with pytest.raises(SystemExit):
        main(["ledger", str(tmp_path)])
    said = capsys.readouterr().out
    assert "1 run of 2.0 h had no price" in " ".join(said.split())
    assert "train --price" in said
    assert "launch --price" in said
