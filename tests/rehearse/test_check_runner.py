"""Checks run one after another: what a failure stops, what a hang or a crash leaves standing, and how they are chosen."""

import io
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import check_samples as samples
import psutil
import pytest
from waiting import HANG

from windtunnel.check import Check, CheckFailed, Findings, Outcome, all_checks, in_order
from windtunnel.recipe import UserError
from windtunnel.rehearse import Context, Progress, run_checks, select

pytestmark = pytest.mark.end_to_end


def check(name: str, run=samples.passes, *needs: str, **more) -> Check:
    return Check(name, f"{name} holds", f"repair {name}", run, needs=needs, **more)


def run(checks: list[Check], folder: Path, *, isolate: bool = False, stream: io.StringIO | None = None) -> dict[str, Outcome]:
    context = Context("charlm", folder=folder)
    with Progress(stream or io.StringIO()) as view:
        return {outcome.check: outcome for outcome in run_checks(checks, context, view, isolate=isolate)}


def test_a_failure_skips_what_needs_it_and_nothing_else(tmp_path: Path) -> None:
    made = run(
        [
            check("a"),
            check("b", samples.fails),
            check("c", samples.passes, "b"),
            check("d", samples.passes, "c"),
            check("e", samples.passes, "a"),
        ],
        tmp_path,
    )
    assert [o.status for o in made.values()] == ["ok", "fail", "skip", "skip", "ok"]
    assert (made["b"].evidence, made["b"].fix) == ("seven", "repair b")
    assert made["c"].cause == ("b",)
    assert "it needs b" in made["c"].evidence
    assert "it needs c" in made["d"].evidence


def test_needs_that_are_not_there_or_do_not_apply_are_ignored(tmp_path: Path) -> None:
    made = run([check("a", samples.fails, applies=samples.never), check("b", samples.passes, "a", "z")], tmp_path)
    assert list(made) == ["b"]
    assert made["b"].status == "ok"


def test_a_failure_that_does_not_block(tmp_path: Path) -> None:
    made = run([check("a", samples.fails_softly), check("b", samples.passes, "a")], tmp_path)
    assert [o.status for o in made.values()] == ["fail", "ok"]


def test_errors_of_users_and_bugs_are_failures_with_something_to_do(tmp_path: Path) -> None:
    made = run([check("user", samples.user_error), check("bug", samples.divides), check("exit", samples.exits)], tmp_path)
    assert (made["user"].evidence, made["user"].fix) == ("no file", "give one")
    assert "ZeroDivisionError: division by zero" in made["bug"].evidence
    assert "Traceback" not in made["bug"].evidence
    assert "Traceback" in Path(made["bug"].log).read_text()
    assert "SystemExit: 3" in made["exit"].evidence


def test_an_interrupt_is_not_swallowed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run([check("a", samples.interrupts)], tmp_path)


def test_plain_progress_names_every_check_and_its_evidence(tmp_path: Path) -> None:
    stream = io.StringIO()
    run([check("a"), check("b", samples.fails)], tmp_path, stream=stream)
    text = stream.getvalue()
    for part in ("a: a holds", "✓ a", "nine of nine", "✗ b"):
        assert part in text
    assert "\x1b" not in text


def test_facts_reach_later_checks_and_warnings_the_report(tmp_path: Path) -> None:
    made = run(
        [check("a"), check("b", samples.reads_facts, "a"), check("c", samples.warns), check("d", samples.cannot_tell)], tmp_path
    )
    assert made["b"].evidence == "9"
    assert (made["c"].status, made["c"].warnings) == ("warn", ("mind the gap",))
    assert (made["d"].status, made["d"].fix, made["d"].blocks) == ("skip", "a machine with a GPU", False)


def test_a_bug_in_applies_is_a_failed_check(tmp_path: Path) -> None:
    made = run([check("a", applies=samples.divides_too), check("b")], tmp_path)
    assert [o.status for o in made.values()] == ["fail", "ok"]


@pytest.mark.timeout(300)
def test_a_check_that_hangs_crashes_or_is_killed_fails_alone(tmp_path: Path) -> None:
    names = ("passes", "crashes", "hangs", "leaves_children", "is_killed", "leaves", "exits", "divides", "cannot_be_sent", "much")
    checks = [check(name, getattr(samples, name)) for name in names]
    checks = [replace(c, limit=2.0) if c.name == "hangs" else c for c in checks] + [check("last")]
    made = run(checks, tmp_path, isolate=True)
    assert [o.check for o in made.values() if o.status == "ok"] == ["passes", "leaves_children", "much", "last"]
    assert "killed by SIGSEGV" in made["crashes"].evidence
    assert "no result after 2 s: it hangs in" in made["hangs"].evidence
    assert "check_samples.py" in made["hangs"].evidence
    assert "killed by SIGKILL (out of memory?)" in made["is_killed"].evidence
    assert "ended with exit code 0 without a result" in made["leaves"].evidence
    assert "SystemExit: 3" in made["exits"].evidence
    assert "pickle" in made["cannot_be_sent"].evidence.lower()
    assert len(made["much"].facts["text"]) == samples.MUCH
    marked = [p for p in psutil.process_iter(["cmdline"]) if samples.MARK in " ".join(p.info["cmdline"] or [])]
    assert not marked, "processes of checks were left behind"


def test_what_a_check_prints_goes_to_its_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = run([check("prints", samples.prints)], tmp_path, isolate=True)
    assert made["prints"].status == "ok"
    assert "to stdout" not in capfd.readouterr().out
    assert "to stdout" in (tmp_path / "prints.log").read_text()


def test_the_folder_and_environment_of_the_caller_reach_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOME_VARIABLE", "some value")
    made = run([check("where", samples.where)], tmp_path, isolate=True)
    assert made["where"].facts == {"folder": str(tmp_path), "variable": "some value"}


def test_nothing_outlives_a_command_that_is_killed(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import check_samples as s\n"
        "from windtunnel.check import Check\nfrom windtunnel.rehearse import Context, run_checks\nfrom pathlib import Path\n"
        f"run_checks([Check('hangs', 'p', 'f', s.hangs, limit=100)], Context('charlm', folder=Path({str(tmp_path)!r})))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    started = tmp_path / "hanging"
    deadline = time.monotonic() + HANG
    while not (started.exists() and started.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    child = int(started.read_text())
    os.kill(process.pid, 9)
    process.wait()
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_selecting_takes_needs_along_and_keeps_the_order() -> None:
    checks = [check("a"), check("b", samples.passes, "a"), check("c"), check("d", samples.passes, "b", "gone")]
    assert [c.name for c in select(checks, ["d"])] == ["a", "b", "d"]
    assert [c.name for c in select(checks, ["c", "a"])] == ["a", "c"]
    with pytest.raises(UserError, match="no check named 'bb'") as caught:
        select(checks, ["bb"])
    assert caught.value.fix == "did you mean b? windtunnel check --list names all"


def test_findings_name_everything_at_once() -> None:
    found = Findings()
    found.problem("one", "do this", shows="end")
    found.problem("two", "do that")
    with pytest.raises(CheckFailed, match="one; two") as caught:
        found.evidence("fine")
    assert caught.value.fix == "do this; do that"
    assert caught.value.problems == (("one", "do this"), ("two", "do that"))
    assert caught.value.shows == "end"
    assert Findings().evidence("fine").text == "fine"


def test_every_check_has_a_name_a_proof_and_a_fix_of_its_own() -> None:
    checks = all_checks()
    assert len({c.name for c in checks}) > 20
    assert len({c.proves for c in checks}) == len({c.name for c in checks})
    for c in checks:
        assert c.fix
        assert c.limit <= 600
        assert len(c.name) <= 17, "the column of names is 17 wide"


@pytest.mark.parametrize("recipe", ["charlm", "trm-sudoku", "finetune", "sft", "rl"])
def test_of_the_checks_of_one_name_one_applies(recipe: str, tmp_path: Path) -> None:
    context = Context(recipe, folder=tmp_path, resume=tmp_path, sbatch=tmp_path)
    names = [check.name for check in all_checks() if check.applies(context)]
    assert len(set(names)) == len(names)


def test_checks_come_behind_what_they_need() -> None:
    names = [check.name for check in all_checks()]
    for check in all_checks():
        assert all(names.index(need) < names.index(check.name) for need in check.needs)
    first, second = Check("a", "x", "y", samples.passes, needs=("b",)), Check("b", "x", "y", samples.passes)
    assert in_order([first, second]) == [second, first]


def test_the_documentation_names_every_check() -> None:
    text = (Path(__file__).parents[2] / "docs" / "check.md").read_text(encoding="utf-8")
    for c in all_checks():
        assert f"`{c.name}`" in text, f"docs/check.md does not name {c.name}"
