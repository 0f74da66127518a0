"""Run folders: made, opened, refused, listed."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from windtunnel.recipe import UserError, load_recipe, stage_recipe
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


def test_the_code_is_known_by_its_commit_where_it_is_a_checkout(tmp_path: Path) -> None:
    with make(tmp_path) as run:
        versions = run.manifest["versions"]
    assert "transformers" in versions
    assert re.fullmatch(r"[0-9a-f]{12,}(-dirty)?", versions.get("commit", 12 * "0"))


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
    (run.path / "manifest.backup.json").write_text("{half")
    for text in ("{half", "[]", '{"format": 1}'):
        (run.path / "manifest.json").write_text(text)
        with pytest.raises(UserError, match=r"manifest\.json is damaged"):
            RunFolder.open(run.path)


def test_a_run_goes_on_with_the_batch_that_its_plan_derived(tmp_path: Path) -> None:
    """However often, from the run's own recipe, and whatever a machine would derive from the one that is given."""
    recipe = load_recipe("charlm", ["model.depth=2"])
    assert recipe.pretrain.batch_tokens is None
    with RunFolder.create(tmp_path, recipe, rig={}, plan={"layout": {"batch_tokens": 16384}}) as made:
        path = made.path
    for given in (recipe, RunFolder.open(path, recipe).recipe, RunFolder.open(path).recipe):
        with RunFolder.open(path, given, write=True) as run:
            assert (run.recipe.pretrain.batch_tokens, run.changes) == (16384, [])
    with pytest.raises(UserError, match="batch_tokens is 16384 there and 8192 here"):
        RunFolder.open(path, load_recipe("charlm", ["model.depth=2", "stages.pretrain.batch_tokens=8192"]))


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


def test_all_differences_are_told_at_once_with_the_way_on(tmp_path: Path) -> None:
    make(tmp_path, "model.depth=4").close()
    path = newest_run(tmp_path)
    with pytest.raises(UserError) as error:
        RunFolder.open(path, load_recipe("charlm", ["model.depth=6", "seed=1"]))
    assert "model.depth is 4 there and 6 here; " in error.value.message.replace("seed is 1337 there and 1 here; ", "") + "; "
    assert "seed is 1337 there and 1 here" in error.value.message
    assert f"windtunnel train --resume --run {path}" in (error.value.fix or "")
    assert "matrix_lr" in (error.value.fix or "")


def test_rates_may_be_lowered_and_what_changed_is_known(tmp_path: Path) -> None:
    make(tmp_path, "model.depth=4", "budget.steps=10").close()
    path = newest_run(tmp_path)
    own = str(path / "recipe.yaml")
    with RunFolder.open(
        path, load_recipe(own, ["stages.pretrain.optimizer.matrix_lr=0.001", "budget.steps=20"]), write=True
    ) as run:
        assert sorted(run.changes) == ["budget.steps: 10 -> 20", "stages.pretrain.optimizer.matrix_lr: null -> 0.001"]
    # The recipe leaves the rate to be derived: the run's own stays.
    again = RunFolder.open(path, load_recipe("charlm", ["model.depth=4", "budget.steps=20"]))
    assert again.recipe.pretrain.optimizer.matrix_lr == 0.001


def test_values_with_which_nothing_was_saved_are_taken_back(tmp_path: Path) -> None:
    make(tmp_path, "model.depth=4", "budget.steps=10").close()
    path = newest_run(tmp_path)
    own = path / "recipe.yaml"

    def opened(steps: int) -> RunFolder:
        return RunFolder.open(path, load_recipe(str(own), [f"budget.steps={steps}"]), write=True)

    before = own.read_bytes()
    with opened(20) as run:
        run.update(changes=[{"time": 0.0, "changes": run.changes}])
        (run.checkpoints_dir / "step-00000004.tmp-1-2").mkdir()
        assert run.take_back()
        assert not run.take_back()
    assert own.read_bytes() == before
    assert RunFolder.open(path).manifest["changes"] == []
    with opened(30) as run:
        (run.checkpoints_dir / "step-00000004").mkdir()
        assert not run.take_back()
    assert RunFolder.open(path).recipe.budget.steps == 30
    with opened(40) as run:
        run.leave("nothing was trained")
    assert RunFolder.open(path).recipe.budget.steps == 30


def test_a_damaged_manifest_is_mended_from_its_copy(tmp_path: Path) -> None:
    with make(tmp_path) as run:
        run.finish("done", "budget: 10 steps")
    for damage in ("", "{half", "[]"):
        (run.path / "manifest.json").write_text(damage)
        again = RunFolder.open(run.path)
        assert again.manifest["status"] == "done"
        assert "manifest.json is damaged" in again.manifest["mended"]
        assert "damaged" in (list_runs(tmp_path)[0].problem or "")
    RunFolder.open(run.path, write=True).close()
    assert json.loads((run.path / "manifest.json").read_text())["reason"] is None


def test_an_older_run_is_never_taken_for_a_damaged_one(tmp_path: Path) -> None:
    old, new = make(tmp_path), make(tmp_path)
    new.path.rename(tmp_path / "charlm-29990101-000000")
    damaged = tmp_path / "charlm-29990101-000000"
    for name in ("manifest.json", "manifest.backup.json"):
        (damaged / name).write_text("{half")
    for recipe in (None, "charlm"):
        with pytest.raises(UserError, match="29990101-000000, cannot be used") as error:
            newest_run(tmp_path, recipe)
        assert str(old.path) in (error.value.fix or "")


def test_json_that_is_written_has_no_nan(tmp_path: Path) -> None:
    with make(tmp_path) as run:
        run.update(summary={"loss": math.nan, "losses": [1.0, math.inf]})
    read = json.loads((run.path / "manifest.json").read_text(), parse_constant=pytest.fail)
    assert read["summary"] == {"loss": None, "losses": [1.0, None]}


def test_a_run_of_relative_files_can_be_used_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    sets = ["data.corpus.kind=text", "data.corpus.files=[book.txt]", "data.tokenizer.alphabet=auto"]
    with RunFolder.create(tmp_path, load_recipe("charlm", sets), rig=RIG) as run:
        pass
    RunFolder.open(run.path, load_recipe("charlm", sets))
    monkeypatch.chdir(tmp_path)
    assert RunFolder.open(run.path).recipe.data.corpus.files == [str(tmp_path / "here" / "book.txt")]  # type: ignore[union-attr]
    with pytest.raises(UserError, match="another recipe"):
        RunFolder.open(run.path, load_recipe("charlm", sets))


def test_a_runs_rewards_are_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "reward.py").write_text("")
    monkeypatch.chdir(tmp_path / "here")
    sets = ["stages.rl.rewards=[{kind: math}, {kind: function, function: 'reward.py:score'}]", "stages.sft=null"]
    recipe = stage_recipe(load_recipe("grpo", sets), "rl")
    with RunFolder.create(tmp_path, recipe, rig=RIG) as run:
        pass
    assert RunFolder.open(run.path, recipe).changes == []
    monkeypatch.chdir(tmp_path)
    found = RunFolder.open(run.path).recipe.rl
    assert found is not None
    assert [one.function for one in found.sources] == [None, f"{tmp_path}/here/reward.py:score"]


def test_files_of_every_source_of_a_mixture_are_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    corpus = "{kind: mixture, sources: {A}}".replace(
        "{A}", "[{corpus: {kind: text, files: [a.txt]}, weight: 1}, {corpus: {kind: text, files: [b.txt]}, weight: 2}]"
    )
    recipe = load_recipe("charlm", [f"data.corpus={corpus}", "data.tokenizer.alphabet=auto"])
    with RunFolder.create(tmp_path, recipe, rig=RIG) as run:
        pass
    monkeypatch.chdir("/")
    again = RunFolder.open(run.path)
    assert again.recipe.data.files == [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    assert again.recipe.data.model_dump() | {"corpus": None} == recipe.data.model_dump() | {"corpus": None}


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
    assert list_runs(tmp_path)[0].status == "failed"
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
    for damaged in (runs[1], runs[3]):
        (damaged.path / "manifest.backup.json").unlink()
    (tmp_path / "something else").mkdir()
    for run in runs:
        run.close()
    found = {s.path: s for s in list_runs(tmp_path)}
    assert len(found) == 4
    assert (found[runs[0].path].step, found[runs[0].path].loss, found[runs[0].path].dollars) == (7, 1.5, 2.0)
    assert found[runs[1].path].status == found[runs[3].path].status == "damaged"
    assert "damaged" in (found[runs[2].path].problem or "")
    with pytest.raises(UserError, match="no run of recipe other") as error:
        newest_run(tmp_path, "other", called="my recipes/other.yaml")
    assert error.value.fix == "start one with `windtunnel train 'my recipes/other.yaml'`"


def test_a_fine_tuning_may_go_on_with_another_learning_rate_and_says_so(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, load_recipe("finetune"), rig=RIG) as run:
        path = run.path
    with pytest.raises(UserError) as error:
        RunFolder.open(path, load_recipe("finetune", ["model.adapter.rank=8"]))
    assert "learning_rate" in (error.value.fix or "")
    assert RunFolder.open(path, load_recipe("finetune", ["stages.sft.learning_rate=1e-5"])).path == path
