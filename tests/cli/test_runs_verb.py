"""The list of runs: readable whatever the width, and what they spent beside their plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windtunnel.cli.start import main
from windtunnel.recipe import load_recipe
from windtunnel.run import Metrics, RunFolder, list_runs


@pytest.fixture
def root(tmp_path: Path) -> Path:
    recipe = load_recipe("charlm", ["model.depth=2"])
    for number in range(3):
        plan = {"hours": 2.0, "dollars": 5.0, "dollars_per_hour": 2.5}
        with RunFolder.create(tmp_path, recipe, rig={}, plan=plan) as run:
            with Metrics(run.metrics_path) as metrics:
                metrics.log(1000 + number, {"loss": 1.23456, "validation_loss": 1.34567, "dollars": 2.5})
            run.spent_path.write_text(json.dumps({"seconds": 3600.0 * (number + 1), "dollars": 2.5 * (number + 1)}))
            run.finish("done", "budget.hours: the next step would not fit into 1.0 h any more")
    return tmp_path


def listed(capsys: pytest.CaptureFixture[str], root: Path, *options: str) -> list[str]:
    with pytest.raises(SystemExit) as ended:
        main(["runs", "--root", str(root), *options])
    assert not ended.value.code
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_a_run_is_one_line_with_its_name_whole(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = listed(capsys, root)
    names = [run.path.name for run in list_runs(root)]
    assert all(len(line) <= columns for line in lines[2:])
    for name in names:
        [line] = [line for line in lines if f" {name} " in line]
        assert "1.3457" in line
        assert "budget.hours" in line
    assert len([line for line in lines if "1.3457" in line]) == 3
    assert any(" recipe " in line for line in lines) == (columns == 200)


def test_the_limit_that_ended_a_run_is_not_folded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with RunFolder.create(tmp_path, load_recipe("charlm", ["name=seedchars"]), rig={}) as run:
        with Metrics(run.metrics_path) as metrics:
            metrics.log(1344, {"loss": 1.2, "validation_loss": 1.1, "dollars": 0.03})
        run.finish("done", "budget.dollars: the next step would not fit into $0.03 any more")
    [line] = [line for line in listed(capsys, tmp_path) if run.path.name in line]
    assert line.endswith(" budget.dollars")


@pytest.mark.parametrize("options", [(), ("--spent",)])
def test_a_folder_with_a_long_name_folds_and_cuts_nothing(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    first = list_runs(root)[0].path
    first.rename(root / ("a copy of the run with 中文字 and [bold]markup " + "that goes on " * 3).strip())
    lines = listed(capsys, root, *options)
    assert " ".join(line.split("  ")[0].strip() for line in lines).count("goes on") == 3
    [heading] = [f"{line} " for line in lines if line.startswith(" run ")]
    assert all(f" {name} " in heading for name in ("run", "status", "planned $" if options else "validation"))


def test_what_was_spent_stands_beside_the_plan_with_its_sum(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = listed(capsys, root, "--spent")
    [together] = [line.split() for line in lines if line.strip().startswith("together")]
    assert together == ["together", "6.00", "6.00", "15.00", "15.00"]
    assert "7.50" in next(line for line in lines if " charlm-" in line), "the dearest stands first"
