"""What start-up leaves out: a command that refuses or lists imports nothing that it does not need."""

from __future__ import annotations

import gc
import json
import subprocess
import sys

import pytest
from waiting import HANG

from windtunnel.cli.verbs import VERBS, load_verb

# In a process of its own: what a command had imported by its end, and whether the garbage collector was on.
COMMAND = """
import gc, json, sys
from windtunnel.cli import main
try:
    main(sys.argv[1:])
except SystemExit as ended:
    code = ended.code
print(json.dumps([code, gc.isenabled(), gc.get_freeze_count(), sorted(sys.modules)]))
"""
HEAVY = {"torch", "numpy", "transformers", "rich.console", "concurrent.futures", "ray", "fastapi"}


def ended(*arguments: str) -> tuple[int, bool, int, set[str]]:
    done = subprocess.run([sys.executable, "-c", COMMAND, *arguments], capture_output=True, text=True, timeout=HANG, check=True)
    code, collecting, frozen, modules = json.loads(done.stdout.splitlines()[-1])
    return code, collecting, frozen, set(modules)


@pytest.mark.parametrize(
    ("arguments", "verb"),
    [
        (("train", "charlm", "--set", "model.deth=3"), "train"),
        (("plan", "nosuch"), "plan"),
        (("train", "/etc/hostname"), "train"),
        (("serve", "nosuch"), "serve"),
        (("verify", "kernel", "--task", "no/such.py"), "verify"),
    ],
)
def test_a_refusal_imports_no_other_verb_and_nothing_heavy(arguments: tuple[str, ...], verb: str) -> None:
    code, collecting, frozen, modules = ended(*arguments)
    assert code == 2
    assert {name for name in VERBS if f"windtunnel.cli.{name}" in modules} == {verb}
    assert not HEAVY & modules
    # The verb worked with the collector on; what start-up had made was set aside.
    assert collecting
    assert frozen > 0


@pytest.mark.parametrize("verb", ["plan", "train", "rehearse"])
@pytest.mark.parametrize("recipe", ["nosuch", "/etc/hostname"])
def test_a_recipe_that_cannot_be_read_is_refused_without_the_schema(verb: str, recipe: str) -> None:
    *_, modules = ended(verb, recipe)
    assert "windtunnel.recipe.schema" not in modules


@pytest.mark.parametrize("arguments", [("--help",), ("--version",)])
def test_the_list_of_verbs_imports_none_of_them(arguments: tuple[str, ...]) -> None:
    code, _, _, modules = ended(*arguments)
    assert code == 0
    assert not {name for name in VERBS if f"windtunnel.cli.{name}" in modules}
    assert not {"windtunnel.recipe.schema", *HEAVY} & modules


@pytest.mark.parametrize("verb", VERBS)
def test_the_list_of_verbs_says_what_their_own_help_says(verb: str) -> None:
    assert load_verb(verb).help.partition("\n\n")[0].replace("\n", " ").startswith(VERBS[verb])
    assert load_verb(verb).get_short_help_str(500).rstrip(".") == VERBS[verb].rstrip(".")


def test_a_call_leaves_the_collector_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    from windtunnel.cli import main

    was = gc.isenabled()
    try:
        for switch, state in ((gc.enable, True), (gc.disable, False)):
            switch()
            with pytest.raises(SystemExit):
                main(["plan", "nosuch"])
            assert gc.isenabled() is state
    finally:
        (gc.enable if was else gc.disable)()
        gc.unfreeze()
