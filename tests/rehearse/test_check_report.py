"""The report made of checks: the verdict of each rung, what failing later costs, terminal, JSON and page."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from windtunnel.check import Outcome
from windtunnel.plan import make_plan
from windtunnel.recipe import load_recipe
from windtunnel.rehearse import Context, Readiness, show, write_page
from windtunnel.rehearse.conduct import write_reports
from windtunnel.rehearse.context import Rehearsal
from windtunnel.rehearse.page import late_text
from windtunnel.rehearse.readiness import late_costs, late_for, write_json_report
from windtunnel.rig import parse_rig


def report(
    folder: Path, *outcomes: Outcome, on: tuple[str, ...] = ("8xH100",), rehearsed: bool = True, source: str = "charlm"
) -> Readiness:
    kind = Rehearsal if rehearsed else Context
    context = kind(source, folder=folder, on=on)
    context.here = parse_rig("g5.xlarge")
    called = ("charlm", "--set", "seed=2")
    return Readiness(context, outcomes, late_for(context, outcomes), 1.5, "2026-01-02T03:04:05+00:00", called, rehearsed)


def outcome(status: str, *, blocks: bool = False, fix: str = "", **more) -> Outcome:
    name = more.pop("check", f"the {status} one")
    return Outcome(name, "it holds", status, f"evidence of {status}", 1.0, "end", fix, blocks=blocks, **more)


def test_found_later_is_rate_times_minutes() -> None:
    recipe = load_recipe("charlm")
    plan = make_plan(recipe, parse_rig("8xH100"))
    late = late_costs(recipe, plan)
    assert late["end"].minutes == pytest.approx(60 * plan.hours)
    assert late["end"].dollars == pytest.approx(plan.dollars, rel=0.01)
    assert late["first interruption"].dollars == pytest.approx(late["end"].dollars / 2)
    order = [
        late[m].minutes for m in ("start", "first steps", "first validation", "first checkpoint", "first interruption", "end")
    ]
    assert order == sorted(order)
    assert late["first checkpoint"].minutes == pytest.approx(late["start"].minutes + 10)
    assert late_text(late["end"]) == f"${late['end'].dollars:,.2f} (60 min)"
    free = make_plan(recipe, parse_rig("A10G@0"))
    assert late_costs(recipe, free)["end"].dollars == 0
    assert late_text(None) == ""


def test_nothing_shows_after_the_run_is_over() -> None:
    recipe = load_recipe("charlm", ["budget.hours=0.1", "checkpoints.every=10 h"])
    plan = make_plan(recipe, parse_rig("8xH100"))
    assert late_costs(recipe, plan)["first checkpoint"].minutes == pytest.approx(60 * plan.hours)


@pytest.mark.parametrize(
    ("outcomes", "ready"),
    [
        ([outcome("ok")], True),
        ([outcome("ok"), outcome("warn", warnings=("mind it",))], True),
        ([outcome("skip", fix="elsewhere")], True),
        ([outcome("skip", blocks=True)], False),
        ([outcome("ok"), outcome("fail", fix="mend it")], False),
    ],
)
def test_verdict_and_exit_code(tmp_path: Path, outcomes: list[Outcome], ready: bool) -> None:
    made = report(tmp_path, *outcomes)
    assert made.ready is ready
    assert made.exit_code == (0 if ready else 1)
    assert made.verdict.startswith("READY on rung gpu" if ready else "NOT READY on rung gpu")
    follows = "windtunnel train charlm --set seed=2" if ready else "windtunnel rehearse charlm --set seed=2 --on 8xH100"
    assert made.next_command == follows
    rungs = made.next_rung
    assert bool(rungs) is ready  # only what is ready is taken to the machine that costs
    if ready:
        assert rungs[0].startswith("windtunnel launch charlm --set seed=2 --to ssh:HOST --price ")
        assert rungs[1] == (
            "windtunnel launch charlm --set seed=2 --on 8xH100 --to runpod --set checkpoints.mirror=s3://BUCKET/runs"
        )
    assert "several GPUs" in made.beyond
    assert "kernels" not in made.beyond
    checked = report(tmp_path, *outcomes, rehearsed=False)
    assert checked.next_command == f"windtunnel {'rehearse' if ready else 'check'} charlm --set seed=2 --on 8xH100"
    assert checked.verdict.startswith("READY: charlm" if ready else "NOT READY: charlm")


def test_what_does_not_exist_is_bad_input(tmp_path: Path) -> None:
    assert report(tmp_path, outcome("fail", check="recipe", blocks=True), source="nothing").exit_code == 2
    assert report(tmp_path, outcome("fail", check="rig", blocks=True), on=("8xNOTHING",)).exit_code == 2


def test_a_failure_leaves_the_rungs_below_it_ready(tmp_path: Path) -> None:
    made = report(tmp_path, outcome("fail", rung="node", check="network"), outcome("ok"), on=("2x(8xH100)",), rehearsed=False)
    verdicts = {verdict.rung: verdict for verdict in made.rungs()}
    assert [verdicts[rung].ready for rung in ("cpu", "gpu", "node", "cluster")] == [True, True, False, False]
    assert verdicts["node"].words == "not ready: network"
    assert verdicts["gpu"].words == "ready"  # this machine has one
    cpu = report(tmp_path, outcome("fail", rung="cpu"), rehearsed=False)
    assert [verdict.ready for verdict in cpu.rungs()] == [False, False, False]
    assert "not run" in report(tmp_path, outcome("skip", blocks=True), rehearsed=False).rungs()[0].words
    assert [v.rung for v in report(tmp_path, outcome("ok"), on=("A10G",)).rungs()] == ["cpu", "gpu"]


def test_the_dearest_failure_is_named(tmp_path: Path) -> None:
    early = Outcome("early", "p", "fail", "x", 0.0, "start", "y")
    made = report(tmp_path, early, outcome("fail"))
    assert made.dearest() == made.late["end"]
    assert report(tmp_path, outcome("ok")).dearest() is None


@pytest.mark.parametrize("rehearsed", [True, False])
def test_the_terminal_report_fits_100_columns_and_says_what_to_do(tmp_path: Path, rehearsed: bool) -> None:
    stream = io.StringIO()
    several = outcome("fail", check="several", problems=(("one is wrong " * 9, "mend one"), ("two is wrong", "mend two")))
    made = report(
        tmp_path, outcome("ok"), outcome("fail", fix="mend it"), several, outcome("warn", warnings=("first", "second")),
        on=("H200", "A100-80", "4x(4xGH200)", "8xH100"), rehearsed=rehearsed,
    )  # fmt: skip
    show(made, stream)
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= 100
    for part in (
        "evidence of fail",
        "→ mend it",
        "→ mend one",
        "→ mend two",
        "first",
        "second",
        "found later",
        "NOT READY",
        "rung cluster",
    ):
        assert part in text
    assert ("4x(4xGH200)" in text) is True
    assert ("report.html" in text) is rehearsed
    assert "found on 8xH100 instead, when training is over: $" in text


def test_json_and_page(tmp_path: Path) -> None:
    made = report(tmp_path, outcome("ok"), outcome("fail", fix="mend <it>"), outcome("warn", warnings=("mind <that>",)))
    data = json.loads(write_json_report(made).read_text())
    assert data["ready"] is False
    assert [c["status"] for c in data["checks"]] == ["ok", "fail", "warn"]
    assert data["checks"][1]["found_later"]["dollars"] > 0
    assert data["checks"][2]["warnings"] == ["mind <that>"]
    assert [p["rig"] for p in data["plans"]] == ["g5.xlarge", "8xH100"]
    assert [r["rung"] for r in data["rungs"]] == ["cpu", "gpu", "node"]
    page = write_page(made, tmp_path / "report.html").read_text()
    for part in ("mend &lt;it&gt;", "<li>mind &lt;that&gt;</li>", "Found later, when training is over", "<h2>Rungs</h2>"):
        assert part in page
    mixed = report(tmp_path, *(outcome(status) for status in ("skip", "ok", "warn", "fail")))
    page = write_page(mixed, tmp_path / "report.html").read_text()
    places = [page.index(f"evidence of {status}") for status in ("fail", "warn", "skip", "ok")]
    assert places == sorted(places)  # what needs a reader stands on top


def test_the_page_of_several_stages_says_which_one_its_plans_are_of(tmp_path: Path) -> None:
    page = write_page(report(tmp_path, outcome("ok"), source="trm"), tmp_path / "report.html").read_text()
    assert "8xH100, stage quality" in page
    assert "planned on 8xH100, stage quality" in page
    plain = write_page(report(tmp_path, outcome("ok")), tmp_path / "report.html").read_text()
    assert ", stage" not in plain


def test_a_report_that_cannot_be_written_is_still_shown(tmp_path: Path) -> None:
    made = write_reports(report(tmp_path / "gone", outcome("fail", fix="mend it"), rehearsed=True))
    stream = io.StringIO()
    show(made, stream)
    text = " ".join(stream.getvalue().split())
    assert "→ mend it" in text
    assert "NOT READY" in text
    assert f"warn: report {tmp_path / 'gone' / 'report.json'} cannot be written: No such file or directory" in text
    assert "report: " not in text
    assert made.to_json()["report"] is None
    assert made.exit_code == 1


def test_a_report_of_a_recipe_that_does_not_load(tmp_path: Path) -> None:
    made = report(tmp_path, outcome("fail", check="recipe", blocks=True), rehearsed=False, source="nothing")
    show(made, io.StringIO())
    assert made.to_json()["plans"] == []
    assert "nothing is not ready" in write_page(made, tmp_path / "report.html").read_text()


def test_the_report_comes_even_where_the_planner_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments, **options):
        raise ZeroDivisionError

    monkeypatch.setattr("windtunnel.rehearse.context.make_plan", broken)
    made = report(tmp_path, outcome("fail", check="plan", log="plan.log"))
    stream = io.StringIO()
    show(made, stream)
    assert "NOT READY" in stream.getvalue()
    assert made.late == {}
    assert report(tmp_path, outcome("ok")).to_json()["plans"] == []


def test_a_target_without_a_price_still_gives_minutes(tmp_path: Path) -> None:
    made = report(tmp_path, outcome("ok"), on=("GH200",))
    assert late_text(made.late_of(made.outcomes[0]))
    show(made, io.StringIO())


WEIGHTS = (("the model's weights", "windtunnel fetch some-model"),)


@pytest.mark.parametrize("rehearsed", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_nothing_is_ready_that_training_would_refuse(tmp_path: Path, rehearsed: bool, named: bool) -> None:
    held = (outcome("ok"), outcome("skip", fix="elsewhere", lacks=WEIGHTS), outcome("skip", fix="elsewhere", lacks=WEIGHTS))
    made = replace(report(tmp_path, *held, rehearsed=rehearsed), named=named)
    assert made.ready is False
    assert made.exit_code == (0 if named else 1), "what a named rig lacks is fetched there"
    where = " on rung gpu" if rehearsed else ""
    assert made.verdict.startswith(f"READY{where} but for the model's weights (windtunnel fetch some-model): charlm for 8xH100;")
    assert made.next_rung == []
    further = named and not rehearsed  # a rehearsal takes random weights
    follows = "windtunnel rehearse charlm --set seed=2 --on 8xH100" if further else "windtunnel fetch some-model"
    assert made.next_command == follows
    rungs = {verdict.rung: verdict for verdict in made.rungs()}
    assert not any(verdict.ready for verdict in rungs.values())
    refused = "not ready: without the model's weights (windtunnel fetch some-model) `windtunnel train` refuses"
    assert [rungs["cpu"].words, rungs["gpu"].words] == [refused] * 2
    assert rungs["node"].words.startswith("ready but for the model's weights (windtunnel fetch some-model); only there:")
    data = made.to_json()
    assert (data["ready"], data["lacks"]) == (False, [{"what": "the model's weights", "command": "windtunnel fetch some-model"}])
    stream = io.StringIO()
    show(made, stream)
    assert "! rung node" in stream.getvalue()
    assert "ready but for what is not here" in write_page(made, tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("limit", "price", "asked"), [("dollars=5", None, True), ("dollars=5", 1.2, False), ("hours=5", None, False)]
)
def test_training_by_dollars_asks_for_a_price_where_none_is_known(
    tmp_path: Path, limit: str, price: float | None, asked: bool
) -> None:
    context = Rehearsal("charlm", (f"budget.{limit}",), ("8xH100",), tmp_path)
    context.here = replace(parse_rig("g5.xlarge"), dollars_per_hour=price)
    made = replace(report(tmp_path, outcome("ok")), context=context)
    wanted = "windtunnel train charlm --set seed=2"
    assert made.next_command == wanted + (" --price DOLLARS_AN_HOUR" if asked else "")


def test_a_failure_weighs_more_than_what_is_lacking(tmp_path: Path) -> None:
    made = replace(report(tmp_path, outcome("fail"), outcome("skip", lacks=WEIGHTS)), named=True)
    assert made.exit_code == 1
    assert made.verdict.startswith("NOT READY on rung gpu: charlm")
    assert made.next_command.startswith("windtunnel rehearse")


def test_what_is_large_is_fetched_where_it_is_trained(tmp_path: Path) -> None:
    held = (outcome("ok"), outcome("skip", lacks=WEIGHTS))
    stream = io.StringIO()
    show(report(tmp_path, *held), stream)
    words = "next, on 8xH100 or a machine whose disk it mounts: windtunnel fetch some-model\n"
    assert words in stream.getvalue()
    here = io.StringIO()
    show(report(tmp_path, *held, on=("g5.xlarge",)), here)
    assert "next: windtunnel fetch some-model\n" in here.getvalue()


@pytest.mark.parametrize("here", [[], ["8xB200", "8xA100-80"]])
def test_next_is_the_cheapest_rig_that_the_target_s_plan_names(tmp_path: Path, here: list[str]) -> None:
    plans = {"here": {"instead": here}, "8xH100": {"instead": ["8xB200", "8xH200"]}}
    made = report(tmp_path, outcome("fail", check="plan", facts={"plans": plans}))
    assert made.next_command == "windtunnel rehearse charlm --set seed=2 --on 8xH200"
