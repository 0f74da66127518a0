"""Pictures: files that open, pages that need nothing else, every component and rig named, and odd plans."""

from __future__ import annotations

import re
import struct
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from windtunnel.cli import main
from windtunnel.plan import (
    Moment,
    Plan,
    Role,
    check_plot_path,
    cost_svg,
    hours_text,
    make_plan,
    memory_svg,
    plan_stages,
    step_svg,
    write_plot,
)  # fmt: skip
from windtunnel.plan.plots import roles_svg
from windtunnel.recipe import UserError, load_recipe, stage_recipe
from windtunnel.rig import parse_rig
from windtunnel.watch import PlanRow, Report, write_report


def plan_for(rig: str, *overrides: str) -> Plan:
    return make_plan(load_recipe("charlm", overrides), parse_rig(rig))


def with_timeline(plan: Plan) -> Plan:
    """A step with a beginning, a peak and an end."""
    idle = {name: gib for name, gib in plan.components.items() if name not in ("activations", "loss")}
    moments = [
        Moment("forward", 0.3 * plan.step_seconds, plan.components | {"loss": 0.0}),
        Moment("backward", 0.9 * plan.step_seconds, plan.components),
        Moment("optimizer", plan.step_seconds, idle | {"optimizer_workspace": 1.5}),
    ]
    return replace(plan, timeline=tuple(moments), peak_moment="backward")


def texts(svg: str) -> str:
    """All text of an SVG, which must be well-formed."""
    return " ".join(
        "".join(element.itertext()).strip() for element in ElementTree.fromstring(svg).iter() if "text" in element.tag
    )


def test_png_has_a_row_a_rig_and_opens(tmp_path: Path) -> None:
    one = write_plot([plan_for("8xH100")], tmp_path / "one.png")
    three = write_plot([plan_for(rig) for rig in ("H100", "8xH100", "8xA100")], tmp_path / "three.png")
    sizes = []
    for path in (one, three):
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG\r\n")
        sizes.append(struct.unpack(">II", content[16:24]))
    assert sizes[0][0] == sizes[1][0]
    assert sizes[1][1] > 2.5 * sizes[0][1]


def test_a_legend_of_many_components_stands_within_the_picture() -> None:
    plan = make_plan(stage_recipe(load_recipe("trm"), "quality"), parse_rig("RTX3090"))
    svg = memory_svg(plan)
    height = float(re.findall(r'viewBox="[^"]* ([0-9.]+)"', svg)[0])
    places = [float(y) for y in re.findall(r'<text[^>]* y="([0-9.]+)"', svg)]
    assert len(places) > 20
    assert max(places) < height
    assert "limit" in texts(svg)


def test_the_page_needs_nothing_else_and_shows_every_rig(tmp_path: Path) -> None:
    plans = [plan_for("g5.xlarge", "model.depth=48"), plan_for("8xH100", "model.depth=48")]
    page = write_plot(plans, tmp_path / "plans.html").read_text()
    links = set(re.findall(r'(?:src|href)="([^"#][^"]*)"', page))
    assert not links
    assert "<script" not in page
    assert page.count("<svg") == 5
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', page))
    assert {a or b for a, b in used} <= set(ids)
    for plan in plans:
        assert plan.rig in page
    assert plans[0].reasons[0] in page
    assert "does not fit" in page
    assert not re.search(r"\b(nan|inf)\b", page)


def test_memory_names_components_peak_moment_and_limit() -> None:
    plan = with_timeline(plan_for("8xH100"))
    shown = texts(memory_svg(plan))
    for name, gib in plan.components.items():
        if gib >= 0.01 * plan.peak_gib:
            assert name.replace("_", " ") in shown
    assert f"{plan.peak_gib:.1f} of {plan.limit_gib:.1f} GiB a rank, at backward" in shown
    assert "forward" in shown
    assert f"limit {plan.limit_gib:.1f}" in re.sub(" +", " ", shown)
    assert "var(--ink)" in memory_svg(plan)


def test_step_names_its_terms_and_what_is_hidden() -> None:
    plan = plan_for("8xH100")
    shown = texts(step_svg(plan))
    for name, seconds in plan.step_terms.items():
        assert (name in shown) == (seconds >= 0.0005 * plan.step_seconds)
    assert "hidden behind computation" in shown


def test_costs_have_dollars_hours_and_refusals() -> None:
    plans = [plan_for("H100", "model.depth=48"), plan_for("8xH100", "model.depth=48"), plan_for("RTX3090", "model.depth=4")]
    shown = texts(cost_svg(plans))
    assert "does not fit" in shown
    assert f"${plans[1].dollars:,.2f}" in shown
    assert "no price known" in shown


def test_the_whole_run_is_of_all_stages(tmp_path: Path) -> None:
    page = tmp_path / "trm.html"
    with pytest.raises(SystemExit) as ended:
        main(["plan", "trm", "--on", "H100", "--on", "8xH100", "--plot", str(page)])
    assert ended.value.code == 0
    whole = plan_stages(load_recipe("trm"), parse_rig("8xH100"))
    shown = page.read_text()
    assert "<h1>Plan of trm</h1>" in shown
    assert shown.count("<h2>8xH100, stage ") == 2
    assert f"${whole.dollars:,.2f}, {hours_text(whole.hours)}" in shown


@pytest.mark.parametrize(
    "change",
    [
        {"timeline": ()},
        {"components": {"weights": 1.0, "activations": 3.0, "correction": -0.5}, "peak_gib": 3.5},
        {"components": {"weights": 1e-6}, "peak_gib": 1e-6},
        {"components": {f"part_{n}": 1.0 for n in range(30)}, "peak_gib": 30.0},
        {"step_terms": {"kernel launches": 0.5, "matrix products": 0.4}, "step_seconds": 0.5, "hidden_seconds": 0.4},
        {"limit_gib": 0.1, "fits": False},
    ],
)
def test_odd_plans_are_drawn_too(change: dict[str, object]) -> None:
    plan = replace(plan_for("8xH100"), **change)
    if "components" in change:
        plan = replace(plan, timeline=(Moment("backward", plan.step_seconds, plan.components),))
    assert texts(memory_svg(plan))
    assert texts(step_svg(plan))


def test_learners_and_engines_have_a_picture_of_their_own(tmp_path: Path) -> None:
    plan = plan_for("8xH100")
    engine = Role(6, plan.layout, {"weights": 14.2, "kv_cache": 50.0, "context": 0.6}, 64.8, plan.limit_gib, {"generation": 40.0})
    learner = Role(2, plan.layout, plan.components, plan.peak_gib, plan.limit_gib, {"backward": 9.0})
    both = replace(plan, method="grpo", roles={"learner": learner, "engine": engine})
    shown = texts(roles_svg(both))
    assert all(words in shown for words in ("2 x learner", "6 x engine", "kv cache", "limit"))
    assert roles_svg(plan) == ""
    assert write_plot([both], tmp_path / "a.html").read_text().count("<svg") == 3
    assert "One round" in texts(step_svg(both))


@pytest.mark.parametrize("name", ["a.jpg", "a", "a.svg", "a.png.txt"])
def test_other_suffixes_are_refused_with_one_that_works(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\.png or \.html") as caught:
        check_plot_path(tmp_path / name)
    assert ".png" in (caught.value.fix or "")


def test_places_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UserError, match="folder"):
        check_plot_path(tmp_path / "folder.png")
    with pytest.raises(UserError, match="no folder"):
        check_plot_path(tmp_path / "missing" / "a.png")


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    path.write_text("old")
    write_plot([plan_for("8xH100")], path)
    assert "old" not in path.read_text()[:100]
    assert [child.name for child in tmp_path.iterdir() if child.name.startswith(".")] == []


def test_the_report_shows_the_picture_as_it_is(tmp_path: Path) -> None:
    plan = plan_for("8xH100")
    row = PlanRow(plan.rig, plan.fits, [("layout", plan.layout.describe(), "")], picture=memory_svg(plan, "plan0"))
    page = write_report(tmp_path / "report.html", Report("charlm is ready", "All hold.", True, plans=[row])).read_text()
    assert row.picture in page
    assert "&lt;svg" not in page
