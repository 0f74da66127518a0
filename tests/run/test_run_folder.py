"""Run folders: made, opened, refused, listed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from windtunnel.recipe import UserError, load_recipe
from windtunnel.run import Metrics, RunFolder, list_runs, newest_run

RIG = {"name": "here", "gpus": 0}


def make(root: Path, *overrides: str) -> RunFolder:
    return RunFolder.create(root, load_recipe("charlm", overrides), rig=RIG, derived={"dim": 128}, command=["train", "charlm"])


def test_what_was_written_is_what_is_opened(tmp_path: Path) -> None:
    with make(tmp_path, "model.depth=4") as run:
        run.finish("done", "budget: 10 steps")
    again = RunFolder.open(run.path)
    assert again.recipe == run.recipe
    assert again.manifest["derived"] == {"dim": 128}
    assert again.manifest["rig"] == RIG
    assert again.manifest["status"] == "done"
    assert {"windtunnel", "torch", "python"} <= set(again.manifest["versions"])
    assert again.checkpoints_dir.is_dir()
    assert run.path.name.startswith("charlm-20")


def test_two_runs_in_one_second_get_two_folders(tmp_path: Path) -> None:
    assert len({make(tmp_path).path for _ in range(4)}) == 4


def test_what_is_no_run_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        RunFolder.open(tmp_path / "none")
    with pytest.raises(UserError, match="not a run folder"):
        RunFolder.open(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="not a run folder"):
        RunFolder.open(tmp_path / "file")
    with pytest.raises(UserError, match="cannot be made"):
        make(tmp_path / "file")
    run = make(tmp_path)
    for text in ("{half", "[]", '{"format": 1}'):
        (run.path / "manifest.json").write_text(text)
        with pytest.raises(UserError, match=r"manifest\.json is damaged"):
            RunFolder.open(run.path)


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("model.depth=6", "model.depth"),
        ("seed=1", "seed"),
        ("data.corpus.documents=5000", "data.corpus.documents"),
        ("stages.pretrain.optimizer.momentum=0.5", "stages.pretrain.optimizer.momentum"),
    ],
)
def test_a_run_of_another_recipe_is_refused_naming_the_key(tmp_path: Path, override: str, key: str) -> None:
    make(tmp_path, "model.depth=4").close()
    path = newest_run(tmp_path)
    with pytest.raises(UserError, match="another recipe") as error:
        RunFolder.open(path, load_recipe("charlm", ["model.depth=4", override]), write=True)
    assert f"{key} is " in error.value.message
    RunFolder.open(path, load_recipe("charlm", ["model.depth=4"]), write=True).close()


def test_budget_may_change_and_derived_values_are_the_runs(tmp_path: Path) -> None:
    make(tmp_path, "model.depth=4", "budget.steps=10").close()
    path = newest_run(tmp_path, "charlm")
    asked = load_recipe("charlm", ["model.depth=auto", "budget.steps=20", "checkpoints.keep_last=5"])
    with RunFolder.open(path, asked, write=True) as run:
        assert (run.recipe.model.depth, run.recipe.budget.steps, run.recipe.checkpoints.keep_last) == (4, 20, 5)
    assert RunFolder.open(path).recipe == run.recipe


HOLD = """
import sys
from windtunnel.run import RunFolder
run = RunFolder.open(sys.argv[1], write=True)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_live_process_is_refused_and_a_dead_one_is_not_in_the_way(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.close()
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=f"in use by process {process.pid}"):
        RunFolder.open(run.path, write=True)
    assert RunFolder.open(run.path).recipe == run.recipe
    assert list_runs(tmp_path)[0].status == "running"
    process.kill()
    process.communicate()
    assert list_runs(tmp_path)[0].status == "killed"
    RunFolder.open(run.path, write=True).close()


def test_the_list_survives_damaged_members(tmp_path: Path) -> None:
    assert list_runs(tmp_path / "none") == []
    runs = [make(tmp_path) for _ in range(4)]
    with Metrics(runs[0].metrics_path) as metrics:
        metrics.log(7, {"loss": 1.5, "dollars": 2.0})
    runs[0].finish("done", "budget")
    (runs[1].path / "manifest.json").write_bytes(b"\xff\x00")
    runs[2].metrics_path.write_bytes(b"garbage" * 100)
    (runs[3].path / "manifest.json").write_text(json.dumps([1]))
    (tmp_path / "something else").mkdir()
    for run in runs:
        run.close()
    found = {s.path: s for s in list_runs(tmp_path)}
    assert len(found) == 4
    assert (found[runs[0].path].step, found[runs[0].path].loss, found[runs[0].path].dollars) == (7, 1.5, 2.0)
    assert found[runs[1].path].status == found[runs[3].path].status == "damaged"
    assert "damaged" in (found[runs[2].path].problem or "")
    with pytest.raises(UserError, match="no run of recipe other"):
        newest_run(tmp_path, "other")
