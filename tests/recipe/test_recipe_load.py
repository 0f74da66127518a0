"""Recipes from files and overrides: what is accepted, and what a refusal says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from windtunnel.recipe import (
    Every,
    GateFailed,
    Recipe,
    StdlibCorpus,
    TextCorpus,
    UserError,
    load_recipe,
    recipe_names,
    recipe_notes,
    stage_recipe,
)

MINIMAL = "name: small\ndata:\n  corpus:\n    kind: stdlib\n"


def refused(source: str | Path, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load_recipe(source, overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.fixture
def recipe_file(tmp_path: Path):
    def write(text: str, name: str = "r.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_every_shipped_recipe_loads() -> None:
    assert "charlm" in recipe_names()
    for name in recipe_names():
        assert load_recipe(name).name == name


def test_overrides_change_values_and_keep_the_rest() -> None:
    recipe = load_recipe(
        "charlm", ["model.depth=12", "budget.dollars=$25", "checkpoints.every=90 s", "stages.pretrain.micro_batch=8"]
    )
    assert recipe.model.depth == 12
    assert recipe.budget.dollars == 25.0
    assert recipe.checkpoints.every == Every(seconds=90.0)
    assert recipe.pretrain.micro_batch == 8
    assert recipe.model.sequence == load_recipe("charlm").model.sequence


def test_a_limit_that_is_named_stands_in_place_of_inherited_ones(recipe_file) -> None:
    def limits(source: str | Path, *sets: str) -> dict[str, float]:
        budget = load_recipe(source, sets).budget.model_dump()
        return {key: value for key, value in budget.items() if value is not None}

    assert limits("charlm") == {"hours": 1}
    assert limits("charlm", "budget.dollars=1000") == {"dollars": 1000}
    assert limits("charlm", "budget.dollars=1000", "budget.hours=2") == {"dollars": 1000, "hours": 2}
    assert limits("charlm", "budget.hours=null") == {}
    mine = recipe_file("extends: charlm\nname: mine\nbudget: {dollars: 40}\n")
    assert limits(mine) == {"dollars": 40}
    assert limits(mine, "budget.steps=9") == {"dollars": 40, "steps": 9}, "what the user's own file names is not inherited"
    plain = recipe_file("extends: charlm\nname: mine\n", "plain.yaml")
    assert limits(plain, "budget.steps=9") == {"steps": 9}
    below = recipe_file(f"extends: {mine}\nname: below\nbudget: {{hours: 3}}\n", "below.yaml")
    assert limits(below) == {"hours": 3}
    [note] = recipe_notes(load_recipe(mine))
    assert note.startswith("budget.dollars stands in place of budget.hours=1 ")
    assert recipe_notes(load_recipe("charlm", ["budget.dollars=5", "budget.hours=2"])) == []


def test_the_limits_of_a_stage_give_way_like_those_of_the_recipe() -> None:
    trm = load_recipe("trm", ["stages.quality.budget.hours=2"])
    assert trm.stages["quality"].budget.steps is None
    assert trm.stages["validation"].budget.steps == 1000
    whole = load_recipe("trm", ["budget.dollars=500"])
    assert whole.stages["quality"].budget.steps == 5000, "a limit of all stages together says nothing of one stage's length"
    assert load_recipe("trm").budget == whole.budget.model_copy(update={"dollars": None})


@pytest.mark.parametrize("order", [1, -1])
def test_override_of_a_kind_drops_the_other_kinds_keys_in_any_order(order: int) -> None:
    sets = ["data.corpus.kind=text", "data.corpus.files=[a.txt, 'b/*.txt']", "data.tokenizer.alphabet=auto"][::order]
    corpus = load_recipe("charlm", sets).data.corpus
    assert isinstance(corpus, TextCorpus)
    assert corpus.files == ["a.txt", "b/*.txt"]


def test_unknown_key_names_file_line_key_and_nearest(recipe_file) -> None:
    path = recipe_file(MINIMAL + "model:\n  sequence: 64\n  deth: 3\n")
    assert refused(path) == f"{path}:7: model.deth: unknown key; nearest: depth"


@pytest.mark.parametrize(
    "given",
    ["name=" + "x" * 101, "name=two words", 'stages={"a\\n": {kind: pretrain}}', f"stages={{{'x' * 101}: {{kind: pretrain}}}}"],
)
def test_names_that_no_folder_can_bear_are_refused(given: str) -> None:
    with pytest.raises(UserError, match=r"\{0,99\}|a stage's name is of small letters"):
        load_recipe("charlm", [given])


@pytest.mark.parametrize("given", ["checkpoints.every=5 steps", "checkpoints={every: 5 steps}"])
def test_a_key_of_the_recipe_in_a_stage_is_named_with_its_place(given: str) -> None:
    found = refused("rl", f"stages.rl.{given}")
    assert found.startswith(
        f"--set stages.rl.{given}: stages.rl.checkpoints: unknown key; checkpoints is a key of the recipe itself"
    )
    alone = load_recipe("rl", ["stages.rl.set={checkpoints.every: 5 steps}"])
    assert stage_recipe(alone, "rl").checkpoints.every == load_recipe("rl", ["checkpoints.every=5 steps"]).checkpoints.every


def test_unknown_key_inside_a_union_lists_that_kinds_keys(recipe_file) -> None:
    path = recipe_file(MINIMAL + "    zzzzzz: 1\n")
    assert refused(path) == f"{path}:5: data.corpus.zzzzzz: unknown key; valid: kind, megabytes"


def test_every_problem_is_listed_once_with_its_own_place(recipe_file) -> None:
    path = recipe_file(MINIMAL + "model:\n  depth: 0\n  mlp: swigl\nbudgt: {}\n")
    lines = refused(path, "seed=-1").splitlines()
    assert lines == [
        "--set seed=-1: seed: expected at least 0 (got -1)",
        f"{path}:6: model.depth: expected at least 1 or 'auto' (got 0)",
        f"{path}:7: model.mlp: expected 'relu2' or 'swiglu' (got 'swigl'); nearest: swiglu",
        f"{path}:8: budgt: unknown key; nearest: budget",
    ]


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("model.depth=deep", "model.depth: expected a whole number or 'auto' (got 'deep')"),
        ("model.depth=1.5", "expected a whole number or 'auto' (got 1.5)"),
        ("model.depth=1000", "expected at most 256 or 'auto' (got 1000)"),
        ("model.head_dim=7", "expected a multiple of 2 (got 7)"),
        ("model.window=LX", "expected text that matches ^[SL]+$ (got 'LX')"),
        ("model.value_embeddings=3", "expected true or false (got 3)"),
        (
            "budget.hours=3 parsecs",
            "expected hours as a number, or a time with its unit such as '90 min' or '2 h' (got '3 parsecs')",
        ),
        ("budget.hours=.inf", "expected a finite number (got inf)"),
        ("budget.hours=0", "expected more than 0 (got 0"),
        ("budget.tokens=.inf", "expected a whole number, such as 524288, '350M' or '1.5B' (got inf)"),
        ("budget.tokens=1e999M", "expected a finite number"),
        ("budget.tokens=lots", "expected a whole number, such as 524288, '350M' or '1.5B' (got 'lots')"),
        ("budget.dollars=€5", "expected US dollars, such as 25 or '$25' (got '€5')"),
        ("checkpoints.every=10", "expected an interval with its unit, such as '250 steps', '10 min' or '1 h' (got 10)"),
        ("checkpoints.every=0 steps", "expected an interval with its unit"),
        ("checkpoints.every=1.5 steps", "expected an interval with its unit"),
        (
            "data.corpus.kind=txt",
            "expected text, arithmetic, stdlib, sudoku, counted, conversations, theses, prompts or mixture "
            "(got 'txt'); nearest: text",
        ),
        ("data.corpus.kind=text", "data.corpus.files: missing; it must be given"),
        ("data.validation=0.5", "expected less than 0.5 (got 0.5)"),
        ("data=3", "data: expected a section of keys (got 3)"),
        ("model=3", "model: expected a section of keys (got 3)"),
        ("model=", "model: expected a section of keys (got null)"),
        ("budget.hours=9:30", "a time with its unit such as '90 min' or '2 h' (got '9:30')"),
        ("model.depth=010", "model.depth: expected a whole number or 'auto' (got '010')"),
        ("data.tokenizer.alphabet='0123'", "data.tokenizer.alphabet lacks"),
        ("stages.evaluate.prompts=hello", "expected a list, such as [a, b] (got 'hello')"),
        ("stages.evaluate.prompts=[1]", "stages.evaluate.prompts.0: expected text (got 1); as a text: '\"1\"'"),
        ("notify.command=true", "notify.command: expected text (got true); as a text: '\"true\"'"),
        ("name=No Spaces", "expected text that matches"),
        ("seed=2024-13-45", "seed: expected a whole number (got '2024-13-45')"),
        ("model", "expected key.path=value"),
        ("=3", "expected key.path=value"),
        ("model..depth=3", "expected key.path=value"),
        ("seed.x=3", "seed is a value, not a section"),
    ],
)
def test_wrong_values_say_what_was_expected(override: str, says: str) -> None:
    message = refused("charlm", override)
    assert says in message
    assert f"--set {override}" in message or "lacks" in message
    assert len(message) < 400


def test_a_long_value_is_not_repeated_in_full() -> None:
    assert len(refused("charlm", f"seed={'x' * 10_000}").split(": seed:")[1]) < 200


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty; expected a mapping"),
        ("# only a comment\n", "is empty; expected a mapping"),
        ("- a\n- b\n", "expected a mapping of keys, found a list"),
        ("hello\n", "expected a mapping of keys, found a single value"),
        ("name: [\n", "not valid YAML"),
        ("name: @x\n", "found character '@' that cannot start any token"),  # which libyaml does not name
        pytest.param("name: " + "[" * 100_000, "nesting is too deep", id="deep"),  # which overflows libyaml's stack
        pytest.param("name: " + "[" * 15_000, "nesting is too deep", id="deep-and-short"),
        ("name: a\nname: b\n", ":2: key name is given twice"),
        (MINIMAL + "model:\n  depth: 3\n  depth: 4\n", ":7: key model.depth is given twice"),
        ("a: &x\n  b: *x\n", "an alias refers to itself"),
        ("when: 2024-13-45\n", "not valid YAML"),
        ("name: !!python/object:os.system x\n", "not valid YAML"),
        ("1: 2\n", ": 1:"),
        ("{[a]: b}\n", "not valid YAML"),
        ("a: b\n---\nc: d\n", "not valid YAML"),
        ("name: x\n", "data: missing; it must be given"),
        ("extends: [charlm]\n", ":1: extends: expected a recipe's name or file"),
        ("extends: charlmm\n", "did you mean charlm?"),
    ],
)
def test_damaged_files_are_refused_with_a_message(recipe_file, text: str, says: str) -> None:
    path = recipe_file(text)
    message = refused(path)
    assert says in message
    assert str(path) in message or "charlmm" in message


def test_not_utf8_names_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes("name: caf\xe9\n".encode("latin-1"))
    assert refused(path).splitlines() == [
        f"recipe file {path} is not UTF-8 text: byte 0xe9 at 9",
        "  fix: a recipe is YAML text in UTF-8",
    ]


def test_a_file_that_cannot_be_a_recipe_is_refused_before_it_is_read_to_its_end(tmp_path: Path) -> None:
    """A text to train on, given in the recipe's place, may be larger than memory; a pipe may never say anything."""
    text, pipe, bomb = tmp_path / "book.txt", tmp_path / "pipe.yaml", tmp_path / "bomb.yaml"
    with text.open("wb") as file:
        file.truncate(2**33)
    os.mkfifo(pipe)
    aliases = "".join(f"b{n}: &b{n} [{','.join(['*b' + str(n - 1)] * 9)}]\n" for n in range(1, 10))
    bomb.write_text(f"b0: &b0 [x, x]\n{aliases}")
    assert "longer than 1,000,000 characters" in refused(text)
    assert "is a pipe" in refused(pipe)
    assert "more than 100,000 keys and items" in refused(bomb)


@pytest.mark.parametrize("source", ["", " ", "nowhere/none.yaml", "a" * 5000, "x\0.yaml", "/", "."])
def test_no_such_file_never_ends_in_a_traceback(source: str) -> None:
    assert len(refused(source)) < 6000


def test_misspelt_name_gets_the_nearest() -> None:
    assert "did you mean charlm?" in refused("charml")


def test_extends_merges_sections_and_replaces_other_kinds(recipe_file) -> None:
    recipe_file(MINIMAL + "    megabytes: 3.0\nmodel:\n  depth: 4\n  sequence: 64\n", "base.yaml")
    top = load_recipe(recipe_file("extends: base.yaml\nname: top\nmodel:\n  depth: 6\n", "top.yaml"))
    assert (top.name, top.model.depth, top.model.sequence) == ("top", 6, 64)
    assert isinstance(top.data.corpus, StdlibCorpus)
    assert top.data.corpus.megabytes == 3.0
    other = load_recipe(recipe_file("extends: base.yaml\ndata:\n  corpus:\n    kind: arithmetic\n", "other.yaml"))
    assert other.data.corpus.kind == "arithmetic"


def test_extends_points_at_the_file_where_the_wrong_key_stands(recipe_file) -> None:
    base = recipe_file(MINIMAL + "model:\n  deth: 4\n", "base.yaml")
    assert refused(recipe_file("extends: base.yaml\nseed: 3\n", "top.yaml")).startswith(f"{base}:6: model.deth")


def test_circular_extends_is_refused(recipe_file) -> None:
    recipe_file("extends: b.yaml\n", "a.yaml")
    assert "goes round in a circle" in refused(recipe_file("extends: a.yaml\n", "b.yaml"))


def test_every_file_of_a_stage_of_reinforcement_learning_is_found_from_the_recipes_folder(tmp_path: Path) -> None:
    for name in ("p.jsonl", "reward.py", "model.json", "level3.py"):
        (tmp_path / name).write_text("")
    path = tmp_path / "r.yaml"
    path.write_text(
        "name: r\nmodel: {kind: huggingface, config: model.json}\n"
        "data: {corpus: {kind: conversations, kernels: {tasks: 20}}, tokenizer: {kind: folder}}\n"
        "stages:\n  rl:\n    set: {data.corpus: {kind: prompts, files: [p.jsonl], kernels: null}}\n"
        "    rewards: [{kind: function, function: 'reward.py:score'}, {kind: function, function: 'packaged'}]\n"
        "    budget: {steps: 2}\n  sft:\n    set: {data.corpus.kernels.held_out: [level3.py, elsewhere.py]}\n"
        "    answers: {metric: 'reward.py:score'}\n    budget: {steps: 2}\n"
    )
    found = load_recipe(path)
    assert found.model.config == str(tmp_path / "model.json")  # type: ignore[union-attr]
    assert stage_recipe(found, "rl").data.corpus.files == [str(tmp_path / "p.jsonl")]  # type: ignore[union-attr]
    assert stage_recipe(found, "sft").data.corpus.kernels.held_out == [str(tmp_path / "level3.py"), "elsewhere.py"]  # type: ignore[union-attr]
    assert [one.function for one in stage_recipe(found, "rl").rl.sources] == [f"{tmp_path}/reward.py:score", "packaged"]  # type: ignore[union-attr]
    assert stage_recipe(found, "sft").sft.answers.metric == f"{tmp_path}/reward.py:score"  # type: ignore[union-attr]


def test_files_are_found_from_the_recipes_folder(recipe_file, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("words")
    path = recipe_file("name: t\ndata:\n  corpus:\n    kind: text\n    files: [book.txt, elsewhere.txt, '', /abs.txt]\n")
    corpus = load_recipe(path).data.corpus
    assert isinstance(corpus, TextCorpus)
    assert corpus.files == [str(tmp_path / "book.txt"), "elsewhere.txt", "", "/abs.txt"]


def test_scientific_notation_is_a_number(recipe_file) -> None:
    recipe = load_recipe(recipe_file(MINIMAL + "stages:\n  pretrain:\n    optimizer:\n      matrix_lr: 1e-3\n"))
    assert recipe.pretrain.optimizer.matrix_lr == 0.001


@pytest.mark.parametrize(
    ("text", "value"), [("2_000", 2000), ("0x10", 16), ("+12", 12), ("1.5e1", 15.0), (".5e2", 50.0), ("2.e1", 20.0), ("3.", 3.0)]
)
def test_numbers_are_read_as_yaml_1_2_has_them(text: str, value: float) -> None:
    assert load_recipe("charlm", [f"budget.hours={text}"]).budget.hours == value


def test_a_recipe_cannot_be_changed_after_loading() -> None:
    recipe = load_recipe("charlm")
    with pytest.raises(ValueError, match="frozen"):
        recipe.seed = 3  # type: ignore[misc]
    assert isinstance(recipe, Recipe)


def test_user_error_shows_its_fix_and_gates_exit_with_one() -> None:
    assert str(UserError("wrong", "do this")) == "wrong\n  fix: do this"
    assert GateFailed("no").exit_code == 1


def test_a_reward_and_its_examples_are_found_beside_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "r.py").write_text("")
    (tmp_path / "e.jsonl").write_text("")
    recipe = "extends: rl\nstages:\n  rl:\n    reward: r.py:reward\n    reward_examples: e.jsonl\n"
    (tmp_path / "mine.yaml").write_text(recipe)
    monkeypatch.chdir("/")
    rl = load_recipe(tmp_path / "mine.yaml").rl
    assert rl is not None
    assert (rl.reward, rl.reward_examples) == (f"{tmp_path}/r.py:reward", f"{tmp_path}/e.jsonl")


def test_a_stage_that_is_left_alone_keeps_its_own_budget_and_what_it_sets() -> None:
    recipe = load_recipe("grpo", ["stages.sft=null"])
    assert recipe.staged
    own = stage_recipe(recipe, "rl")
    assert own.budget.steps == 200
    assert own.data.corpus.kind == "prompts"
    assert not own.staged


def test_a_key_of_another_kind_of_data_is_named_where_the_stage_has_it() -> None:
    with pytest.raises(UserError, match=r"data of this kind has none.* stages\.rl\.set\.data\.corpus\.prompt_key$"):
        load_recipe("grpo", ["stages.sft=null", "data.corpus.prompt_key=text"])
