"""A recursive run and its twins, trained for real and small: the report, what is used again, and what is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer

from windtunnel.cli.flop_matched import Aside, evaluate_flop_matched
from windtunnel.evaluate import ASK_FROM, Comparison, Length, compare_run, flop_matched_members
from windtunnel.launch import Options, find_beside, train_run
from windtunnel.recipe import UserError, load_recipe, stage_recipe
from windtunnel.run import RunFolder
from windtunnel.watch import write_run_page

pytestmark = pytest.mark.end_to_end

RECIPE = """\
name: small
model: {depth: 1, aspect: 32, head_dim: 16, sequence: 32, mlp: swiglu, value_embeddings: false}
trm: {scheme: layerwise, preset: honest, loops: 1, supervision: 2}
data:
  corpus: {kind: arithmetic, documents: 2000, digits: 1}
  validation: 0.2
stages:
  pretrain:
    batch_tokens: 512
    precision: fp32
    validate_every: 10 steps
    validation_tokens: 2000
    optimizer: {matrix_lr: 0.02}
  evaluate: {samples: 0, bits_per_byte_tokens: 4000}
budget: {steps: 20}
"""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> object:
    """Tensors this small only wait for each other on several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    root = tmp_path_factory.mktemp("flop_matched")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WINDTUNNEL_CACHE", str(root / "cache"))
        (root / "small.yaml").write_text(RECIPE)
        assert train_run(load_recipe(root / "small.yaml"), Options(root=root / "runs"), Aside())[0] == 0
    return next((root / "runs").iterdir())


@pytest.fixture(autouse=True)
def cache(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(run.parents[1] / "cache"))


def test_a_run_is_weighed_against_its_baselines(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate_flop_matched(run, steps=None, yes=True, json=True, isolated=False)
    out = capsys.readouterr().out
    report = json.loads(out)  # nothing else on standard output
    assert report == json.loads((run / "flop_matched.json").read_text())
    names = [model["name"] for model in report["models"]]
    assert names == ["recursive", "same-parameters", "between", "same-flops", "recurrence-2"]
    assert report["models"][0]["trained"]["run"] == str(run)
    assert report["models"][0]["behind"]["value"] == 0
    assert report["held_out"]["targets"] > 3000
    assert report["uniform"] > report["models"][0]["loss"]["value"]  # it has learnt something
    assert report["spoilt"] == []
    assert (run / "flop_matched.png").read_bytes().startswith(b"\x89PNG")
    assert "FLOPs-matched baselines" in (run / "report.html").read_text()

    # Nothing is trained twice.
    trained = sorted((run / "flop_matched").glob("*/*/manifest.json"))
    evaluate_flop_matched(run, steps=None, yes=False, json=False, isolated=False)
    assert sorted((run / "flop_matched").glob("*/*/manifest.json")) == trained
    shown = capsys.readouterr().out
    assert report["verdict"] in " ".join(shown.split())
    assert all(len(line) <= 100 for line in shown.splitlines() if "x 32" in line or " x " in line[:40])


def test_more_than_three_times_the_run_is_asked_for_first(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="costs more than 3 times the run itself") as asked:
        evaluate_flop_matched(run, steps=200, yes=False, json=False, isolated=False)
    assert "--yes" in asked.value.fix
    assert "to train" in capsys.readouterr().out  # what it costs is shown before
    assert compare_run(run, 200).seconds_per_flop is not None


@pytest.mark.parametrize("whole", [True, False])
def test_the_steps_that_are_offered_are_under_the_limit(
    whole: bool, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but a shorter comparison of all is offered, and that is not refused in its turn."""
    copy = shutil.copytree(run, tmp_path / "copy", ignore=shutil.ignore_patterns("flop_matched", "checkpoints"))
    if not whole:
        manifest = json.loads((copy / "manifest.json").read_text())
        (copy / "manifest.json").write_text(json.dumps(manifest | {"status": "stopped", "exit_code": 3}))
    with pytest.raises(UserError) as asked:
        evaluate_flop_matched(copy, steps=400 if whole else None, yes=False, json=True, isolated=False)
    offered = int(asked.value.fix.split("--flop-matched-steps ")[1])
    assert 10 <= offered <= 20

    asked_to_train = []
    monkeypatch.setattr("windtunnel.launch.train_beside", lambda *a, **_: asked_to_train.append(a) or (3, run))
    with pytest.raises(typer.Exit):
        evaluate_flop_matched(copy, steps=offered, yes=False, json=True, isolated=False)
    assert asked_to_train


@pytest.mark.parametrize("taken", [40, 1000, 12_345])
@pytest.mark.parametrize("name", ["trm", "trm-sudoku"])
def test_no_more_steps_are_offered_than_the_run_has(name: str, taken: int) -> None:
    comparison = of_length(name, taken, taken)
    offered = comparison.steps_within()
    assert offered is not None
    assert 0.7 * taken < offered <= taken
    shorter = of_length(name, offered, taken)
    assert sum(shorter.member_flops(member) for member in shorter.members) <= ASK_FROM * shorter.flops


def test_nothing_is_offered_where_nothing_is_under_the_limit() -> None:
    assert of_length("trm", 5, 5).steps_within() is None


def test_a_usual_comparison_is_not_asked_for() -> None:
    """The recipe's own loops and supervision steps, each model to be trained."""
    comparison = of_length("trm", 1000, 1000)
    assert sum(comparison.member_flops(member) for member in comparison.members[1:]) < ASK_FROM * comparison.flops


def of_length(name: str, steps: int, taken: int) -> Comparison:
    """The comparison of a run that took `taken` steps, at `steps`."""
    recipe = load_recipe(name, ["model.depth=2"])
    length = Length(steps, 16 * recipe.gpt.sequence, "fp32")
    members = flop_matched_members(stage_recipe(recipe, recipe.training[-1].name) if recipe.training else recipe, 100, length)
    flops = members[0].shape.flops_per_token * length.batch_tokens * taken
    return Comparison(Path(), members, length, True, None, flops, ())


def test_the_twins_have_seen_the_same(run: Path) -> None:
    own = RunFolder.open(run)
    for member in compare_run(run).members[1:]:
        found = find_beside(run, member.name, member.recipe)
        assert found.ended
        assert found.run is not None
        twin = RunFolder.open(found.run)
        assert twin.manifest["data"]["checksum"] == own.manifest["data"]["checksum"]
        assert twin.manifest["summary"]["step"] == own.manifest["summary"]["step"]
        assert twin.manifest["plan"]["layout"]["batch_tokens"] == own.manifest["plan"]["layout"]["batch_tokens"]
        assert twin.recipe.seed == own.recipe.seed


def test_another_length_trains_all_again_and_a_stopped_training_goes_on(run: Path) -> None:
    comparison = compare_run(run, 12)
    assert not comparison.itself
    for member in comparison.members:
        assert find_beside(run, member.name, member.recipe).run is None
    full = compare_run(run)
    member = full.members[1]
    found = find_beside(run, member.name, member.recipe)
    assert found.run is not None
    manifest = found.run / "manifest.json"
    before = manifest.read_text()
    manifest.write_text(json.dumps(json.loads(before) | {"status": "stopped", "exit_code": 3}))
    try:
        again = find_beside(run, member.name, member.recipe)
        assert (again.run, again.ended) == (found.run, False)
    finally:
        manifest.write_text(before)


def test_a_twin_that_does_not_end_ends_the_command(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.launch import beside

    monkeypatch.setattr(beside, "train_run", lambda *_, **__: (3, run))
    with pytest.raises(typer.Exit) as stopped:
        evaluate_flop_matched(run, steps=15, yes=True, json=True, isolated=False)
    assert stopped.value.exit_code == 3


def test_runs_that_cannot_be_compared_are_refused(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("flop_matched", "checkpoints"))
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(manifest | {"status": "stopped", "exit_code": 3}))
    with pytest.raises(UserError, match="has not come to its end") as refused:
        compare_run(copy)
    assert "--flop-matched-steps" in refused.value.fix
    assert compare_run(copy, 50).length.steps == 50
    recipe = (copy / "recipe.yaml").read_text()
    assert "trm:" in recipe
    plain = load_recipe(copy / "recipe.yaml", ["trm=null"])
    from windtunnel.recipe import dump_recipe

    (copy / "recipe.yaml").write_text(dump_recipe(plain))
    with pytest.raises(UserError, match="no recursion to weigh"):
        compare_run(copy, 50)


def test_trainings_under_the_former_name_are_not_done_anew(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy", ignore=shutil.ignore_patterns("flop_matched", "checkpoints"))
    (copy / "worth" / "between").mkdir(parents=True)
    with pytest.raises(UserError, match="trainings beside a run are now in") as refused:
        evaluate_flop_matched(copy, steps=None, yes=True, json=True, isolated=False)
    assert refused.value.fix == f"mv {copy / 'worth'} {copy / 'flop_matched'}"
    (copy / "worth").rename(copy / "flop_matched")
    member = compare_run(copy).members[1]
    assert find_beside(copy, member.name, member.recipe).run is None


def test_the_former_options_name_the_new_ones(run: Path) -> None:
    for given, fix in (
        (("--worth",), "--flop-matched"), (("--worth", "--worth-steps", "50"), "--flop-matched --flop-matched-steps 50"),
    ):  # fmt: skip
        done = subprocess.run([sys.executable, "-m", "windtunnel", "evaluate", str(run), *given], capture_output=True, text=True)
        assert done.returncode == 2
        assert f"windtunnel evaluate {run} {fix}" in " ".join(done.stderr.split()).replace("\n", "")


def test_a_damaged_comparison_does_not_spoil_the_page(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("flop_matched", "checkpoints"))
    for text in ("{", "[]", '{"models": []}'):
        (copy / "flop_matched.json").write_text(text)
        assert "FLOPs-matched baselines" not in write_run_page(copy).read_text()
