"""The report: one file, nothing from outside, everything escaped, charts that tell."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from windtunnel.recipe import UserError, load_recipe
from windtunnel.run import Metrics, RunFolder
from windtunnel.watch import CheckRow, Curve, PlanRow, Report, Sample, write_report, write_run_page
from windtunnel.watch.curves import thin
from windtunnel.watch.evaluated import evaluation_of

EVIL = "<script>alert(1)</script> & 'x' \"y\""


class Page(HTMLParser):
    """Counts what a browser would see."""

    VOID = frozenset({"meta", "br", "link", "img", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.data: list[str] = []
        self.feed(text)

    @property
    def charts(self) -> dict[str, dict[str, Any]]:
        """The charts of its first run, by title."""
        return {chart["title"]: chart for chart in json.loads(self.data[0])["runs"][0]["charts"]}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href"):
                self.links.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.data.append(data)
        else:
            self.text += data


def full_report() -> Report:
    return Report(
        title=f"charlm {EVIL}",
        verdict="One check failed.",
        ready=False,
        subtitle="2026-11-21",
        checks=[
            CheckRow("plan", "fits", "0.3 GiB of 24", 0.2, "ok"),
            CheckRow("kill", "nothing is lost", EVIL, 22.0, "fail", "read the log"),
            CheckRow("gpu", "bf16", "no GPU", 0.0, "skip", "rehearse there"),
        ],
        plans=[
            PlanRow(
                "8xH100",
                True,
                [("depth", "24", "deepest"), ("vocabulary", "18", "")],
                ["±8 %"],
                '<svg><rect fill="var(--ink)"/></svg>',
            )
        ],
        loss=[Curve("training", [(s, 3 / (s + 1)) for s in range(200)]), Curve("validation", [(0, 3.0), (199, 0.1)])],
        memory=[Curve("rank 0", [(0, 1.0), (1, 2.0)])],
        cost=[Curve("spent", [(0, 0.0), (1, 2.0)])],
        budget_dollars=5.0,
        evaluation=[("exact match", "41 % (32-51)", "100 sums")],
        samples=[Sample(EVIL, "42")],
        environment=[("torch", "2.13.0")],
        recipe="name: charlm\n",
    )


def test_report_is_self_contained_well_formed_and_escaped(tmp_path: Path) -> None:
    text = write_report(tmp_path / "report.html", full_report()).read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert len(page.data) == page.tags.count("script") == 2  # what it draws, and what draws it
    assert not re.search(r"^import |\bfetch\(|https?://(?!www.w3.org)", page.data[1], flags=re.M)
    assert "link" not in page.tags
    assert all(link.startswith("#") for link in page.links)
    assert not re.search(r"@import|url\((?!#)", text)
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert page.tags.count("svg") == 1
    assert list(page.charts) == ["Loss", "Memory", "Cost"]
    assert page.charts["Cost"]["limits"] == [{"name": "budget", "kind": "bad", "value": 5.0}]
    assert page.charts["Loss"]["series"]["validation"] == [[0, 3.0], [199, 0.1]]
    for part in (EVIL, "✗ not ready", "What to do: read the log", "not here", "41 % (32-51)", "name: charlm", "±8 %"):
        assert part in page.text
    assert text.count("var(--") > 20
    assert list(tmp_path.iterdir()) == [tmp_path / "report.html"]


def test_what_holds_is_folded_and_what_needs_a_reader_is_open(tmp_path: Path) -> None:
    text = write_report(tmp_path / "report.html", full_report()).read_text(encoding="utf-8")
    before, _, folded = text.partition("1 checks hold")
    assert "<b>kill</b>" in before
    assert "<b>gpu</b>" in before
    assert "<b>plan</b>" in folded.partition("</details>")[0]
    assert "<details>" in before
    shown, _, rest = text.partition("The rest of this plan")
    assert "depth</td>" in shown
    assert "vocabulary</td>" in rest.partition("</details>")[0]


def policy_run(folder: Path) -> Path:
    """A run of reinforcement learning with two verifiers, as training and evaluation leave it."""
    recipe = load_recipe("charlm", ["budget.dollars=10"])
    plan = {"vocab": 256, "tokens_per_second": 900.0}
    with RunFolder.create(folder, recipe, rig={"name": "here"}, plan=plan) as run:
        with Metrics(run.metrics_path) as metrics:
            for step in range(1, 301):
                values = {
                    "loss": 1.0 / step,
                    "reward": step / 300,
                    "reward_math": 0.5,
                    "reward_code": 0.25,
                    "answer_length": 90.0,
                }
                values |= {"staleness": 1.0, "mismatch": 1e-3, "learning_rate": 1.0, "tokens_per_second": 700.0 + step}
                metrics.log(step, values)
        answers = {"n": 8, "right": 6, "share": 0.75, "low": 0.4, "high": 0.9, "reward": 0.8,
                   "wrong": [{"prompt": "2+2=", "truth": "4", "answer": EVIL, "why": "not a number"}]}  # fmt: skip
        told = {"step": 300, "bits_per_byte": 1.2345, "answers": answers, "samples": [{"prompt": "once", "text": " upon"}]}
        (run.path / "evaluation.json").write_text(json.dumps(told))
        run.finish("done", "budget.steps")
        return run.path


def test_the_page_of_a_run_has_rewards_by_verifier_evaluation_and_samples(tmp_path: Path) -> None:
    text = write_run_page(policy_run(tmp_path)).read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    titles = " ".join(page.charts)
    for part in ("Rewards", "Length of answers", "Staleness", "Mismatch", "Learning rate", "Tokens per second"):
        assert part in titles, part
    assert page.charts["Rewards"]["names"] == ["reward", "reward_code", "reward_math"]
    assert page.charts["Tokens per second"]["limits"][0] == {"name": "planned", "kind": "plan", "value": 900.0}
    assert page.charts["Learning rate, share of its peak"]["series"]["learning_rate"][0] == [1, 1.0, 1.0, 1.0]
    assert re.search(r"median; planned 900: 9[45]% of it", page.text)  # the steps' are 701 to 1,000
    for part in ("1.2345", "6 of 8", "mean reward 0.8", "upon", "expected 4; not a number", EVIL):
        assert part in page.text, part
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "evaluation.json").write_text('{"answers": []')
    assert evaluation_of(damaged) == ([], [])


def test_an_empty_report_has_no_empty_sections(tmp_path: Path) -> None:
    page = Page(write_report(tmp_path / "r.html", Report("t", "v", True)).read_text(encoding="utf-8"))
    assert "section" not in page.tags
    assert "✓ ready" in page.text


def test_charts_of_nothing_are_left_out_and_bad_numbers_are_named(tmp_path: Path) -> None:
    odd = Report("t", "v", True, loss=[Curve("n", [(0, math.nan), (1, math.inf), (2, 1.23456789)])])
    page = Page(write_report(tmp_path / "r.html", odd).read_text(encoding="utf-8"))
    assert list(page.charts) == ["Loss"]
    assert page.charts["Loss"]["series"]["n"] == [[0, "nan"], [1, "inf"], [2, 1.23457]]


def test_thinning_keeps_spikes_and_order() -> None:
    points = [(float(i), 1.0) for i in range(100_000)]
    points[54_321] = (54_321.0, 99.0)
    kept = thin(points)
    assert len(kept) <= 2000
    assert (54_321.0, 99.0) in kept
    assert kept == sorted(kept)


def test_a_report_with_a_failed_check_cannot_claim_readiness() -> None:
    with pytest.raises(AssertionError):
        Report("t", "v", True, checks=[CheckRow("c", "p", "e", 0.0, "fail")])


def test_an_unwritable_place_is_a_message(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        write_report(tmp_path / "missing" / "report.html", Report("t", "v", True))


def test_a_second_report_replaces_the_first(tmp_path: Path) -> None:
    for title in ("first", "second"):
        write_report(tmp_path / "r.html", Report(title, "v", True))
    assert "second" in (tmp_path / "r.html").read_text(encoding="utf-8")
