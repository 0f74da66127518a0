"""Corpora, rewards and checks of other packages: found by their entry points, and named where they are broken."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from windtunnel.check import CheckFailed, all_checks
from windtunnel.data import corpus_files, prepare
from windtunnel.recipe import Recipe, UserError, dump_recipe, load_recipe, registry
from windtunnel.rehearse import Context, run_checks, select
from windtunnel.run import read_own_recipe

MODULE = """
    from typing import Literal

    from pydantic import Field

    from windtunnel.check import Check, Evidence
    from windtunnel.recipe import UserCorpus

    class Numbers(UserCorpus):
        kind: Literal["numbers"] = "numbers"
        most: int = Field(500, ge=1)
        fails_at: int | None = None

        def documents(self):
            for number in range(self.most):
                if number == self.fails_at:
                    raise KeyError("seven")
                yield f"number {number} is {'even' if number % 2 == 0 else 'odd'}\\n"

        def expected_bytes(self):
            return 20.0 * self.most

    class Strange(UserCorpus):
        kind: Literal["strange"] = "strange"

        def documents(self):
            yield b"bytes"

        def expected_bytes(self):
            return 1 / 0

    class Empty(UserCorpus):
        kind: Literal["empty"] = "empty"

        def documents(self):
            yield from ()

    def even(prompt, answer, truth):
        return float(answer == truth)

    def look(context, say):
        return Evidence("looked")

    LOOKS = Check("looks", "it was looked", "look", look, applies=lambda context: context.has_data)
    NEEDS = (Check("later", "after the plan", "wait", look, needs=("plan",)),)
    TAKEN = Check("plan", "another plan", "none", look)
    TEXT = "no check"
    SILENT = Check("silent", "nothing", "say something", print)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a package beside the installed ones; called with its entry points by group."""
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path / "cache"))

    def install(name: str = "numbers", **groups: dict[str, str]) -> Path:
        site = tmp_path / f"site-{name}"
        made = site / f"{name}-1.0.dist-info"
        made.mkdir(parents=True)
        (site / f"{name}_package.py").write_text(dedent(MODULE), encoding="utf-8")
        (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
        lines = [
            line
            for group, entries in groups.items()
            for line in (f"[windtunnel.{group}]", *(f"{entry} = {value}" for entry, value in entries.items()))
        ]
        (made / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        monkeypatch.syspath_prepend(str(site))
        return site

    yield install
    for name in [name for name in sys.modules if name.endswith("_package")]:
        del sys.modules[name]


def a_recipe(*sets: str, kind: str = "numbers") -> Recipe:
    tokenizer = "data.tokenizer={kind: character}"
    return load_recipe("charlm", [f"data.corpus={{kind: {kind}}}", tokenizer, "data.validation=0.1", "model.depth=2", *sets])


def test_what_is_built_in_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(**given: str) -> None:
        raise AssertionError("entry points were looked up")

    monkeypatch.setattr(registry, "entry_points", never)
    for name in ("charlm", "trm", "trm-sudoku"):
        assert load_recipe(name).name == name


def test_a_corpus_of_a_package_is_prepared_as_any_text(package) -> None:
    package(corpora={"numbers": "numbers_package:Numbers"})
    recipe = a_recipe("data.corpus.most=300")
    prepared = prepare(recipe)
    assert prepared.documents == 300
    texts = "".join(prepared.tokenizer.decode(split.array) for split in (prepared.train, prepared.validation))
    assert all(f"number {number} is" in texts for number in range(300))
    assert prepare(recipe).reused
    assert prepare(a_recipe("data.corpus.most=299")).documents == 299


def test_a_resolved_recipe_keeps_the_corpus(package, tmp_path: Path) -> None:
    package(corpora={"numbers": "numbers_package:Numbers"})
    recipe = a_recipe("data.corpus.most=7")
    path = tmp_path / "resolved.yaml"
    path.write_text(dump_recipe(recipe), encoding="utf-8")
    assert load_recipe(path) == recipe


def test_a_corpus_is_made_again_when_its_module_changes(package) -> None:
    site = package(corpora={"numbers": "numbers_package:Numbers"})
    recipe = a_recipe()
    first = corpus_files(recipe.data.corpus)
    assert corpus_files(recipe.data.corpus) == first
    module = site / "numbers_package.py"
    module.write_text(module.read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")
    assert corpus_files(recipe.data.corpus)[0].path != first[0].path


def test_a_large_corpus_of_a_package_gets_an_excerpt(package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(corpora={"numbers": "numbers_package:Numbers"})
    monkeypatch.setattr("windtunnel.rehearse.excerpt.EXCERPT_BYTES", 5_000)
    context = Context("given", folder=tmp_path, given=a_recipe("data.corpus.most=5000"))
    corpus = context.scale.data.corpus
    texts = [json.loads(line)["text"] for line in Path(corpus.files[0]).read_text(encoding="utf-8").splitlines()]
    assert texts[:2] == ["number 0 is even\n", "number 1 is odd\n"]
    assert 4_000 < sum(map(len, texts)) <= 5_000


@pytest.mark.parametrize(
    ("kind", "sets", "words"),
    [
        ("numbers", ["data.corpus.most=0"], "data.corpus.most: expected at least 1 (got 0)"),
        ("numbers", ["data.corpus.mots=3"], "data.corpus.mots: unknown key; nearest: most"),
        ("number", [], "or numbers (got 'number'); nearest: numbers"),
    ],
)
def test_keys_of_a_packages_corpus_are_as_strict_as_others(package, kind: str, sets: list[str], words: str) -> None:
    package(corpora={"numbers": "numbers_package:Numbers"})
    with pytest.raises(UserError) as refused:
        a_recipe(*sets, kind=kind)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("numbers", "no_such_module:Numbers", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
        ("numbers", "numbers_package:Nothing", "cannot be loaded: AttributeError"),
        ("numbers", "numbers_package:even", "is no class derived from windtunnel.recipe.UserCorpus"),
    ],
)
def test_a_broken_corpus_names_its_package(package, kind: str, value: str, words: str) -> None:
    package(corpora={kind: value})
    with pytest.raises(UserError) as refused:
        a_recipe(kind=kind)
    assert f"package numbers 1.0, entry point {kind} = {value!r} of windtunnel.corpora {words}" in refused.value.message
    assert "pip uninstall numbers" in str(refused.value.fix)


def test_a_module_that_ends_the_process_names_its_package(package) -> None:
    site = package(corpora={"numbers": "ending_package:Numbers"})
    (site / "ending_package.py").write_text("raise SystemExit('bye')\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"package numbers 1.0, .* cannot be loaded: SystemExit: bye"):
        a_recipe()


@pytest.mark.parametrize(
    ("kind", "sets", "words"),
    [
        ("numbers", ["data.corpus.fails_at=7"], "fails after 7 documents: KeyError: 'seven' ("),
        ("strange", [], "yields a bytes as document 1, expected text"),
        ("empty", [], "yields no documents for"),
    ],
)
def test_a_corpus_that_fails_names_its_package_and_leaves_nothing(
    package, tmp_path: Path, kind: str, sets: list[str], words: str
) -> None:
    package(corpora={kind: f"numbers_package:{kind.capitalize()}"})
    with pytest.raises(UserError) as refused:
        prepare(a_recipe(*sets, kind=kind))
    assert "package numbers 1.0, entry point" in refused.value.message
    assert words in refused.value.message
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]


def test_plans_take_what_the_corpus_expects(package) -> None:
    from windtunnel.plan import make_plan
    from windtunnel.rig import parse_rig

    package(corpora={"numbers": "numbers_package:Numbers", "strange": "numbers_package:Strange"})
    plan = make_plan(a_recipe("data.corpus.most=100000", "budget={steps: 10}"), parse_rig("8xH100"))
    assert plan.epochs is not None
    with pytest.raises(UserError, match="expected_bytes fails: ZeroDivisionError"):
        make_plan(a_recipe(kind="strange"), parse_rig("8xH100"))


def test_two_packages_of_one_name_are_refused(package) -> None:
    package("numbers", corpora={"numbers": "numbers_package:Numbers"})
    package("others", corpora={"numbers": "others_package:Numbers"})
    with pytest.raises(UserError, match="has the name of another"):
        a_recipe()


def test_a_packages_checks_stand_among_the_others(package, tmp_path: Path) -> None:
    package(checks={"looks": "numbers_package:LOOKS", "more": "numbers_package:NEEDS"})
    names = [check.name for check in all_checks()]
    assert names.index("later") > names.index("plan")
    outcomes = run_checks(select(all_checks(), ["looks"]), Context("charlm", folder=tmp_path))
    assert [(o.check, o.status, o.evidence) for o in outcomes] == [("looks", "ok", "looked")]
    assert not [o for o in run_checks(select(all_checks(), ["looks"]), Context("rl", folder=tmp_path)) if o.check == "looks"]


def test_a_check_that_returns_nothing_is_told_what_to_return(package, tmp_path: Path) -> None:
    package(checks={"silent": "numbers_package:SILENT"})
    (outcome,) = run_checks(select(all_checks(), ["silent"]), Context("charlm", folder=tmp_path))
    assert (outcome.status, outcome.evidence) == ("fail", "its function returned NoneType, expected Evidence")


def test_a_run_whose_corpus_nobody_offers_any_more_asks_for_its_package(package, tmp_path: Path) -> None:
    package(corpora={"numbers": "numbers_package:Numbers"})
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.yaml").write_text(dump_recipe(a_recipe()).replace("kind: numbers", "kind: gone"), encoding="utf-8")
    with pytest.raises(UserError) as refused:
        read_own_recipe(run)
    assert refused.value.fix.startswith("install the package that offers this kind of corpus")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("numbers_package:Nothing", "cannot be loaded"),
        ("numbers_package:TEXT", "is neither a windtunnel.check.Check nor a sequence of them"),
        ("numbers_package:TAKEN", "has the name of another check: plan"),
    ],
)
def test_a_broken_check_names_its_package(package, value: str, words: str) -> None:
    package(checks={"looks": value})
    with pytest.raises(UserError) as refused:
        all_checks()
    assert "package numbers 1.0, entry point looks = " in refused.value.message
    assert words in refused.value.message


def test_a_reward_of_a_package_is_taken_by_its_name(package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.verify.checks_answers import open_reward

    site = package(rewards={"even": "numbers_package:even", "gone": "numbers_package:odd", "lost": "lost_package:even"})
    monkeypatch.setenv("PYTHONPATH", str(site))
    with open_reward(Context("rl", ("stages.rl.reward=even",), folder=tmp_path)) as reward:
        assert [reward.call("2?", answer, "yes").value for answer in ("yes", "no")] == [1.0, 0.0]
    with pytest.raises(CheckFailed, match=r"package numbers 1.0, entry point gone = .*: it has no function odd; it has even"):
        open_reward(Context("rl", ("stages.rl.reward=gone",), folder=tmp_path))
    with pytest.raises(UserError, match=r"entry point lost = .*its module is not there"):
        open_reward(Context("rl", ("stages.rl.reward=lost",), folder=tmp_path))
    with pytest.raises(UserError, match="no installed package offers a reward named 'evne'"):
        open_reward(Context("rl", ("stages.rl.reward=evne",), folder=tmp_path))


def test_the_low_rooms_stay_light() -> None:
    """Checks are imported on use: neither the registry nor the room of checks brings torch or the rooms above."""
    program = (
        "import sys, windtunnel.check; "
        "print([name for name in sys.modules if name in ('torch', 'windtunnel.data', 'windtunnel.plan', 'windtunnel.rig')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
