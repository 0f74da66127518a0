"""The order of checks, what a failure stops, what it costs later, and the report made of it all."""

import io
import json
from pathlib import Path

import pytest

from windtunnel.plan import make_plan
from windtunnel.recipe import UserError, load_recipe, scale_model
from windtunnel.rehearse import Check, CheckFailed, Evidence, Outcome, Progress, Readiness, run_checks, show
from windtunnel.rehearse.late import late_costs
from windtunnel.rehearse.page import late_text, write_page
from windtunnel.rehearse.readiness import late_for, write_json_report
from windtunnel.rehearse.state import Rehearsal
from windtunnel.rig import parse_rig


def passing(text: str = "seen"):
    return lambda say: Evidence(text, {"number": 1})


def failing(error: Exception):
    def run(say):
        say("looking")
        raise error

    return run


def check(name: str, run, *needs: str) -> Check:
    return Check(name, f"{name} holds", f"repair {name}", "end", run, needs)


def outcomes_of(checks: list[Check], folder: Path, stream: io.StringIO | None = None) -> dict[str, Outcome]:
    with Progress(stream or io.StringIO()) as view:
        return {outcome.check: outcome for outcome in run_checks(checks, view, folder / "log")}


def test_a_failure_skips_what_needs_it_and_nothing_else(tmp_path: Path) -> None:
    made = outcomes_of(
        [
            check("a", passing()),
            check("b", failing(CheckFailed("seven"))),
            check("c", passing(), "b"),
            check("d", passing(), "c"),
            check("e", passing(), "a"),
        ],
        tmp_path,
    )
    assert [o.status for o in made.values()] == ["ok", "fail", "skip", "skip", "ok"]
    assert made["b"].evidence == "seven"
    assert made["b"].remedy == "repair b"
    assert "it needs b" in made["c"].evidence
    assert "it needs c" in made["d"].evidence


def test_a_failure_that_does_not_block(tmp_path: Path) -> None:
    made = outcomes_of([check("a", failing(CheckFailed("x", blocks=False))), check("b", passing(), "a")], tmp_path)
    assert [o.status for o in made.values()] == ["fail", "ok"]


def test_errors_of_users_and_bugs_are_failures_with_something_to_do(tmp_path: Path) -> None:
    made = outcomes_of(
        [check("user", failing(UserError("no file", "give one"))), check("bug", failing(ZeroDivisionError("by zero")))], tmp_path
    )
    assert (made["user"].evidence, made["user"].remedy) == ("no file", "give one")
    assert "ZeroDivisionError: by zero" in made["bug"].evidence
    assert "Traceback" not in made["bug"].evidence
    assert "Traceback" in (tmp_path / "log").read_text()


def test_an_interrupt_is_not_swallowed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        outcomes_of([check("a", failing(KeyboardInterrupt()))], tmp_path)


def test_plain_progress_names_every_check_and_its_evidence(tmp_path: Path) -> None:
    stream = io.StringIO()
    outcomes_of([check("a", passing("nine of nine")), check("b", failing(CheckFailed("seven")))], tmp_path, stream)
    text = stream.getvalue()
    assert "a: a holds" in text
    assert "✓ a" in text
    assert "nine of nine" in text
    assert "✗ b" in text
    assert "\x1b" not in text


def test_found_later_is_rate_times_minutes() -> None:
    plan = make_plan(load_recipe("charlm"), parse_rig("8xH100"))
    late = late_costs(plan, "H100")
    assert late["end"].minutes == pytest.approx(60 * plan.hours)
    assert late["end"].dollars == pytest.approx(plan.dollars, rel=0.01)
    assert late["first interruption"].dollars == pytest.approx(late["end"].dollars / 2)
    order = [late[m].minutes for m in ("start", "first steps", "first interruption", "end")]
    assert order == sorted(order)
    assert late_text(late["end"]) == f"${late['end'].dollars:,.2f} (60 min)"
    free = make_plan(load_recipe("charlm"), parse_rig("A10G@0"))
    assert late_costs(free, "A10G")["end"].dollars == 0
    assert late_text(None) == ""


def report(folder: Path, *outcomes: Outcome, on: tuple[str, ...] = ("8xH100",)) -> Readiness:
    recipe = load_recipe("charlm")
    here = parse_rig("g5.xlarge")
    rehearsal = Rehearsal(recipe, scale_model(recipe), folder, here, [parse_rig(name) for name in on])
    rehearsal.plan_here = make_plan(recipe, here)
    rehearsal.plans = {rig.name: make_plan(recipe, rig) for rig in rehearsal.targets}
    return Readiness(rehearsal, outcomes, late_for(rehearsal), 1.5, "2026-01-02T03:04:05+00:00", "charlm --set seed=2")


def outcome(status: str, *, blocks: bool = False, remedy: str = "") -> Outcome:
    return Outcome(f"the {status} one", "it holds", status, f"evidence of {status}", 1.0, "end", remedy, blocks=blocks)


@pytest.mark.parametrize(
    ("outcomes", "ready"),
    [
        ([outcome("ok")], True),
        ([outcome("ok"), outcome("warn", remedy="mind it")], True),
        ([outcome("skip", remedy="elsewhere")], True),
        ([outcome("skip", blocks=True)], False),
        ([outcome("ok"), outcome("fail", remedy="mend it")], False),
    ],
)
def test_verdict_and_exit_code(tmp_path: Path, outcomes: list[Outcome], ready: bool) -> None:
    made = report(tmp_path, *outcomes)
    assert made.ready is ready
    assert made.exit_code == (0 if ready else 1)
    assert made.verdict.startswith("READY on rung gpu" if ready else "NOT READY on rung gpu")
    assert made.next_command == f"windtunnel {'train' if ready else 'rehearse'} charlm --set seed=2"
    assert "several GPUs" in made.beyond
    assert "kernels" not in made.beyond


def test_the_terminal_report_fits_100_columns_and_says_what_to_do(tmp_path: Path) -> None:
    stream = io.StringIO()
    made = report(tmp_path, outcome("ok"), outcome("fail", remedy="mend it"), on=("8xH100", "H200", "A100-80", "4x(4xGH200)"))
    show(made, stream)
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= 100
    text = stream.getvalue()
    for part in ("evidence of fail", "mend it", "found later", "4x(4xGH200)", "NOT READY", "report.html"):
        assert part in text


def test_json_and_page(tmp_path: Path) -> None:
    made = report(tmp_path, outcome("ok"), outcome("fail", remedy="mend <it>"))
    data = json.loads(write_json_report(made).read_text())
    assert data["ready"] is False
    assert [c["status"] for c in data["checks"]] == ["ok", "fail"]
    assert data["checks"][1]["found_later"]["dollars"] > 0
    assert [p["rig"] for p in data["plans"]] == ["g5.xlarge", "8xH100"]
    page = write_page(made).read_text()
    assert "mend &lt;it&gt;" in page
    assert "Found later, when training is over" in page


def test_a_target_without_a_price_still_gives_minutes(tmp_path: Path) -> None:
    made = report(tmp_path, outcome("ok"), on=("RTX4090",))
    assert late_text(made.late_of(made.outcomes[0]))
    show(made, io.StringIO())
