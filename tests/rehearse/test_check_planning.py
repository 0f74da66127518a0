"""The recipe against rigs and budget, the run to be resumed, and a publisher's credentials."""

import dataclasses
import json
from pathlib import Path

import pytest

from windtunnel.check import Outcome, all_checks
from windtunnel.plan import make_plan
from windtunnel.recipe import load_recipe, scale_model
from windtunnel.rehearse import CheckOptions, Context, check_recipe, run_checks, select
from windtunnel.rehearse.conduct import default_target
from windtunnel.rig import parse_rig
from windtunnel.run import RunFolder


def outcome(name: str, folder: Path, *sets: str, source: str = "charlm", on: tuple[str, ...] = ("8xH100",), **more) -> Outcome:
    context = Context(source, sets, on, folder=folder, **more)
    made = {o.check: o for o in run_checks(select(all_checks(), [name]), context, isolate=False)}
    return made[name]


@pytest.mark.parametrize("on", ["8xH100", "H200", "4xA100-80", "g5.xlarge"])
def test_the_shipped_recipe_fits_its_rigs(on: str, tmp_path: Path) -> None:
    assert outcome("plan", tmp_path, on=(on,)).status in ("ok", "warn")
    assert outcome("budget", tmp_path, on=(on,)).status in ("ok", "warn")


def test_a_model_that_is_too_large_is_named_with_what_would_do(tmp_path: Path) -> None:
    made = outcome("plan", tmp_path, "model.depth=128", on=("8xH200", "RTX4090"))
    assert made.status == "fail"
    assert "does not fit RTX4090" in made.evidence
    assert "does not fit 8xH200" in made.evidence
    assert len(made.problems) == 2
    assert "--set model.depth=" in made.fix
    assert made.rung == "node"
    alone = outcome("plan", tmp_path, "model.depth=32", on=("8xH200", "RTX4090"))
    assert "does not fit RTX4090" in alone.evidence
    assert "does not fit 8xH200" not in alone.evidence


@pytest.mark.parametrize(
    ("sets", "on", "words", "shows"),
    [
        (("budget.steps=30",), "8xH100", "within its warm-up of 40", "end"),
        (("stages.pretrain.schedule.warmup_steps=100000",), "8xH100", "the learning rate never reaches its peak", "end"),
        (("budget.dollars=10",), "RTX3090", "has no known price", "start"),
        (("checkpoints.every=5 h",), "8xH100", "the first checkpoint is due after the run's end", "first interruption"),
    ],
)
def test_budgets_that_cannot_work(sets: tuple[str, ...], on: str, words: str, shows: str, tmp_path: Path) -> None:
    assert outcome("budget", tmp_path, on=(on,)).status in ("ok", "warn")
    made = outcome("budget", tmp_path, *sets, on=(on,))
    assert made.status == "fail"
    assert words in made.evidence
    assert made.shows == shows


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (("data.corpus.documents=100k",), "--yes"),
        (("budget.steps=100",), "of 100 steps are warm-up"),
        (("budget.hours=0.02",), "starting up"),
        (("stages.pretrain.validate_every=1000000 steps",), "the first validation is due after the run's end"),
        (("budget.hours=0.2", "checkpoints.every=1 h"), "a run that is killed loses everything"),
    ],
)
def test_budgets_that_are_unwise(sets: tuple[str, ...], words: str, tmp_path: Path) -> None:
    made = outcome("budget", tmp_path, *sets)
    assert made.status == "warn"
    assert any(words in warning for warning in made.warnings), made.warnings


def test_what_is_true_of_several_rigs_and_stages_is_said_once(tmp_path: Path) -> None:
    sets = ("model.depth=4", "data.corpus.documents=100k", "budget.hours=null", "budget.tokens=200M")
    made = outcome("plan", tmp_path, *sets, on=("H200", "8xH100"))
    repeated = [warning for warning in made.warnings if "past 16" in warning]
    assert len(repeated) == 1
    assert repeated[0].startswith("H200; 8xH100: ")
    asked = [warning for warning in outcome("budget", tmp_path, *sets, on=("H200", "8xH100")).warnings if "--yes" in warning]
    assert asked == [
        "on H200, 8xH100 `windtunnel train` asks for --yes, which a job without a terminal cannot give: "
        "the check of the plan says why"
    ]


def test_the_fix_of_an_interval_is_one_that_works(tmp_path: Path) -> None:
    made = outcome("budget", tmp_path, "checkpoints.every=5 h")
    fix = made.fix.split("'")[1]
    assert outcome("budget", tmp_path, fix).status == "ok"


def test_a_dollar_budget_below_the_first_step_is_refused_by_the_plan(tmp_path: Path) -> None:
    made = outcome("plan", tmp_path, "budget.dollars=0.05", "budget.hours=null")
    assert "ends before the first step" in made.evidence


@pytest.mark.parametrize(("source", "on", "name"), [("nothing", "8xH100", "recipe"), ("charlm", "8xH10", "rig")])
def test_what_does_not_exist_fails_and_the_rest_goes_on(source: str, on: str, name: str, tmp_path: Path) -> None:
    context = Context(source, on=(on,), folder=tmp_path)
    chosen = select(all_checks(), ["plan", "clock", "limits"])
    made = {o.check: o for o in run_checks(chosen, context, isolate=False)}
    assert made[name].status == "fail"
    assert made["plan"].cause == (name,)
    assert made["clock"].status == made["limits"].status == "ok"


@pytest.mark.parametrize(("source", "on", "name"), [("nothing", "8xH100", "recipe"), ("charlm", "8xH10", "rig")])
def test_what_cannot_be_read_is_said_without_other_checks(source: str, on: str, name: str) -> None:
    report = check_recipe(CheckOptions(source, on=(on,)))
    assert report.exit_code == 2
    assert {o.check: o.status for o in report.outcomes} == {"recipe": "ok", "rig": "ok"} | {name: "fail"}


def test_a_price_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDTUNNEL_PRICE", "cheap")
    assert "$WINDTUNNEL_PRICE is 'cheap'" in outcome("machine", tmp_path).evidence


# Resuming


def run_folder(root: Path, *sets: str) -> Path:
    recipe = scale_model(load_recipe("charlm", sets))
    rig = parse_rig("cpu")
    plan = make_plan(recipe, rig)
    with RunFolder.create(root, recipe, rig=dataclasses.asdict(rig), plan=plan.to_json()) as run:
        (run.path / "spent.json").write_text(json.dumps({"seconds": 7200.0, "dollars": 3.0}))
        return run.path


def resumable(folder: Path, run: Path, *sets: str) -> Outcome:
    recipe = scale_model(load_recipe("charlm", sets))
    recipe = recipe.model_copy(update={"budget": load_recipe("charlm", sets).budget})
    context = Context("charlm", folder=folder, resume=run, given=recipe)
    return {o.check: o for o in run_checks(select(all_checks(), ["resumable"]), context, isolate=False)}["resumable"]


def test_a_run_of_this_recipe_can_go_on(tmp_path: Path) -> None:
    made = resumable(tmp_path, run_folder(tmp_path / "runs"), "budget.hours=10")
    assert made.status == "warn"
    assert "no checkpoint yet" in made.warnings[0]


def test_runs_that_cannot_go_on(tmp_path: Path) -> None:
    path = run_folder(tmp_path / "runs")
    assert "of another recipe: seed is 1337 there and 7 here" in resumable(tmp_path, path, "seed=7", "budget.hours=10").evidence
    assert "budget.hours is spent: 2 of 1" in resumable(tmp_path, path).evidence
    assert "budget.dollars is spent" in resumable(tmp_path, path, "budget.hours=10", "budget.dollars=2").evidence
    assert "does not exist" in resumable(tmp_path, tmp_path / "gone").evidence
    (path / "checkpoints" / "step-00000010").mkdir()
    assert resumable(tmp_path, path, "budget.hours=10").status in ("warn", "fail")
    with RunFolder.open(path, write=True):
        assert "by another process" in resumable(tmp_path, path, "budget.hours=10").evidence


def test_nothing_is_resumed_unless_asked_for(tmp_path: Path) -> None:
    context = Context("charlm", folder=tmp_path)
    assert "resumable" not in [o.check for o in run_checks(select(all_checks(), ["resumable"]), context, isolate=False)]


# Credentials

TOKEN = "hf_" + "a" * 34


def credentials(folder: Path, config: str = "meta-llama/Llama-3.1-8B") -> Outcome | None:
    context = Context("sft", (f"model.config={config}",), folder=folder)
    made = {o.check: o for o in run_checks(select(all_checks(), ["credentials"]), context, isolate=False)}
    return made.get("credentials")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path / "hf"


def test_a_gated_model_needs_a_token_or_a_cache(tmp_path: Path, hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "needs a token" in credentials(tmp_path).evidence
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    made = credentials(tmp_path)
    assert made.status == "ok"
    assert TOKEN not in json.dumps(dataclasses.asdict(made))
    monkeypatch.delenv("HF_TOKEN")
    hub.mkdir()
    (hub / "token").write_text(TOKEN + "\n")
    assert credentials(tmp_path).status == "ok"
    (hub / "token").unlink()
    snapshot = hub / "hub" / "models--meta-llama--Llama-3.1-8B" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "in the cache" in credentials(tmp_path).evidence


@pytest.mark.parametrize(("value", "words"), [("", "is empty"), (f" {TOKEN}", "blanks"), ("secret", "does not look like")])
def test_tokens_that_cannot_work_are_not_shown(
    value: str, words: str, tmp_path: Path, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", value)
    made = credentials(tmp_path)
    assert words in made.evidence
    assert not value.strip() or value.strip() not in json.dumps(dataclasses.asdict(made))


def test_a_model_without_network_and_cache(tmp_path: Path, hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert credentials(tmp_path, "Qwen/Qwen2.5-7B").status == "ok"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "forbids the network" in credentials(tmp_path, "Qwen/Qwen2.5-7B").evidence


def test_built_in_models_and_gpts_need_none(tmp_path: Path, hub: Path) -> None:
    assert credentials(tmp_path, "qwen2.5-7b") is None
    context = Context("charlm", folder=tmp_path)
    assert [o.check for o in run_checks(select(all_checks(), ["credentials"]), context, isolate=False)] == ["recipe"]


@pytest.mark.parametrize(("here", "status"), [("8xH100", "fail"), ("here", "skip")])
def test_a_model_that_is_missing_fails_only_where_it_is_to_be_trained(
    here: str, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDTUNNEL_MODELS", str(tmp_path / "none"))
    context = Context("finetune", (), ("8xH100",), folder=tmp_path)
    context.here = parse_rig(here)
    made = {o.check: o for o in run_checks(select(all_checks(), ["training", "conversations"]), context, isolate=False)}
    for name in ("training", "conversations"):
        assert made[name].status == status, made[name].evidence
        assert "smollm2-135m-instruct" in made[name].evidence
        assert "windtunnel fetch smollm2-135m-instruct" in made[name].fix
        lacks = (("the model's weights", "windtunnel fetch smollm2-135m-instruct"),) if status == "skip" else ()
        assert made[name].lacks == lacks, "training would refuse"


@pytest.mark.parametrize(
    ("name", "sets", "rig"),
    [
        ("charlm", [], "8xH100"),
        ("thesis", [], "8xH200"),
        ("thesis", ["model.config=qwen2.5-7b", "model.weights=bf16"], "8xH100"),
        ("thesis", ["model.adapter=null", "model.weights=bf16"], "8xH100"),  # no single node holds that
    ],
)
def test_the_rig_that_nobody_named_holds_the_recipe(name: str, sets: list[str], rig: str) -> None:
    assert default_target(load_recipe(name, sets)) == rig


def test_a_check_without_a_rig_is_for_one_that_holds_it() -> None:
    made = check_recipe(CheckOptions("thesis", only=("plan",)))
    assert made.context.on == ("8xH200",)
    assert {outcome.check: outcome.status for outcome in made.outcomes}["plan"] == "warn"
    assert not made.named
