"""Actions read from answers, and how well they are told apart."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics

from windtunnel.evaluate import action_rows
from windtunnel.evaluate.action_plot import write_action_plot
from windtunnel.evaluate.action_report import report_actions
from windtunnel.evaluate.actions import read_action
from windtunnel.evaluate.bootstrap import cluster_sums, flip_signs, interval_of, number_clusters
from windtunnel.evaluate.calibration import calibrate
from windtunnel.evaluate.classification import accuracy_over, baselines, classify, macro_f1_of
from windtunnel.evaluate.predictions import Prediction
from windtunnel.files import write_json

ACTIONS = ("STRONG_BUY", "BUY", "HOLD", "SELL", "STRONG_SELL")


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<action>STRONG_SELL</action>", "STRONG_SELL"),
        ("<action>STRONG SELL</action>", "STRONG_SELL"),
        ("<action> strong-sell\n</action>", "STRONG_SELL"),
        ("<Action>Strong  Buy</ACTION>", "STRONG_BUY"),
        ("<action>strong\u2011buy</action>", "STRONG_BUY"),
        ("< action >hold< / action >", "HOLD"),
        ("<reasoning>I would not buy.</reasoning><action>SELL</action>", "SELL"),
        ("<reasoning>STRONG SELL signals everywhere</reasoning><action>BUY</action>", "BUY"),
        ("<action>SELL</action> as I said: <action>sell</action>", "SELL"),
        ("<action>SELL</action>\n\nI am sure. Do not BUY.", "SELL"),
        ("  strong sell ", "STRONG_SELL"),
        ("Hold", "HOLD"),
    ],
)
def test_an_action_is_read_whatever_its_case_and_blanks(text: str, action: str) -> None:
    assert read_action(text, ACTIONS).action == action


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no action element"),
        ("I would not buy; sell", "no action element"),
        ("SELL.", "no action element"),
        ("BUY BUY", "no action element"),
        ("<action>BUY or SELL</action>", "'BUY or SELL' is no action"),
        ("<action>not BUY</action>", "'not BUY' is no action"),
        ("<action>BUYER</action>", "'BUYER' is no action"),
        ("<action>STRONGSELL</action>", "'STRONGSELL' is no action"),
        ("<action></action>", "the action element is empty"),
        ("<action>BUY</action><action>SELL</action>", "contradict each other: BUY, SELL"),
        ("<action>BUY</action><action>perhaps</action>", "'perhaps' is no action"),
        ("<action>STRONG", "not closed"),
        ("<action>SELL", "not closed"),
        ("<action>BUY</action> on reflection <action>SE", "not closed"),
        ("<action>BUY</action", "not closed"),
        ("BUY</action>", "do not match"),
        ("<action><action>BUY</action>", "not closed"),
        ("<actions>BUY</actions>", "no action element"),
        ("<action type='x'>BUY</action>", "do not match"),
        ("<action>\u0412UY</action>", "is no action"),  # a Cyrillic letter
        ("<action>" + "BUY " * 100 + "</action>", "is no action"),
    ],
)
def test_what_can_be_read_in_two_ways_is_not_read(text: str, why: str) -> None:
    reading = read_action(text, ACTIONS)
    assert reading.action is None
    assert why in reading.why
    assert len(reading.why) < 100


@given(st.text(max_size=200), st.sampled_from(ACTIONS))
def test_text_around_an_element_never_changes_what_it_says(text: str, action: str) -> None:
    assert read_action(text, ACTIONS).action in (None, *ACTIONS)
    clean = text.replace("<", "(")
    reading = read_action(f"{clean}<action>{action}</action>{clean}", ACTIONS)
    assert reading.action == action
    assert reading.element == len(clean) + len("<action>")


def scored(truth: Sequence[str], predicted: Sequence[str | None], clusters: Sequence[object] | None = None) -> object:
    return classify(truth, predicted, clusters or range(len(truth)), ACTIONS)


def test_scores_are_those_of_a_worked_example() -> None:
    # scikit-learn's user guide, classification_report: y_true = [0, 1, 2, 2, 0], y_pred = [0, 0, 2, 1, 0].
    names = ("class 0", "class 1", "class 2")
    found = classify([names[i] for i in (0, 1, 2, 2, 0)], [names[i] for i in (0, 0, 2, 1, 0)], range(5), names)
    table = [(round(c.precision, 2), round(c.recall, 2), round(c.f1, 2), c.support) for c in found.classes]
    assert table == [(0.67, 1.0, 0.8, 2), (0.0, 0.0, 0.0, 1), (1.0, 0.5, 0.67, 2)]
    assert found.accuracy.value == pytest.approx(0.6)
    assert {name: round(value, 2) for name, value in found.macro.items()} == {"precision": 0.56, "recall": 0.5, "f1": 0.49}
    assert found.confusion.tolist() == [[2, 0, 0, 0], [1, 0, 0, 0], [0, 1, 1, 0]]


def test_an_unreadable_answer_is_wrong_and_no_class_of_its_own() -> None:
    found = scored(["BUY", "BUY", "SELL", "SELL"], ["BUY", None, "SELL", None])
    assert (found.n, found.unparsable, found.accuracy.value) == (4, 2, 0.5)
    assert [found.labels[i] for i in found.occurring] == ["BUY", "SELL"]
    by_name = {c.label: c for c in found.classes}
    assert (by_name["BUY"].precision, by_name["BUY"].recall) == (1.0, 0.5)
    assert found.macro_f1.value == pytest.approx(2 / 3)
    one = scored(["BUY"], [None])
    assert (one.accuracy.value, one.macro_f1.value) == (0.0, 0.0)
    assert math.isnan(one.steps_off)
    assert one.accuracy.low == 0.0 < 0.5 < one.accuracy.high < 1.0
    assert math.isnan(one.macro_f1.low)


def test_a_class_that_never_occurs_says_so_and_crashes_nothing() -> None:
    found = scored(["HOLD"] * 20, ["HOLD"] * 19 + ["STRONG_BUY"])
    notes = {c.label: c.note for c in found.classes}
    assert notes["HOLD"] == ""
    assert notes["STRONG_BUY"] == "never the truth"
    assert notes["SELL"] == "never the truth, never predicted"
    assert any("SELL: never the truth" in warning for warning in found.warnings)
    sell = next(c for c in found.to_json()["classes"] if c["label"] == "SELL")
    assert (sell["precision"], sell["recall"], sell["f1"]) == (None, None, None)
    assert found.macro_f1.value == pytest.approx(2 * 19 / 39)
    never = scored(["HOLD", "SELL"], ["HOLD", "HOLD"])
    assert {c.label: c.note for c in never.classes}["SELL"] == "never predicted"


rows = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.sampled_from([*ACTIONS, None]), st.integers(0, 6)), min_size=1, max_size=60
)


@given(rows)
def test_scores_are_those_of_scikit_learn(items: list[tuple[str, str | None, int]]) -> None:
    truth, said = [t for t, _, _ in items], [p or "unparsable" for _, p, _ in items]
    found = classify(truth, [p for _, p, _ in items], [c for _, _, c in items], ACTIONS)
    occurring = [a for a in ACTIONS if a in truth]
    assert found.accuracy.value == pytest.approx(metrics.accuracy_score(truth, said))
    expected = metrics.f1_score(truth, said, labels=occurring, average="macro", zero_division=0)
    assert found.macro_f1.value == pytest.approx(expected)
    # The formula that the bootstrap draws with is the same.
    assert macro_f1_of(found.sums.sum(0, keepdims=True), found.occurring)[0] == pytest.approx(expected)
    for interval in (found.accuracy, found.macro_f1):
        assert math.isnan(interval.low) or 0 <= interval.low <= interval.high <= 1


def test_predictions_of_one_date_count_as_one_draw() -> None:
    rng = np.random.default_rng(0)
    days = np.repeat(np.arange(20), 25)
    right = np.repeat(rng.random(20) < 0.5, 25)  # a whole day is right, or wrong
    said = ["BUY" if r else "SELL" for r in right]
    together = classify(["BUY"] * 500, said, days, ACTIONS).accuracy
    apart = classify(["BUY"] * 500, said, range(500), ACTIONS).accuracy
    assert together.value == apart.value
    assert together.high - together.low > 4 * (apart.high - apart.low)
    assert together.low < 0.5 < together.high


def test_an_interval_does_not_depend_on_names_and_order_of_clusters() -> None:
    numbers, count = number_clusters(["b", "a", "b", "c"])
    assert (numbers.tolist(), count) == ([1, 0, 1, 2], 3)
    values = np.array([1.0, 2.0, 3.0, 4.0])
    assert cluster_sums(values, numbers, count).tolist() == [2.0, 4.0, 4.0]
    same = interval_of(np.ones((5, 1)), lambda sums: sums[..., 0] / 5)
    assert (same.value, same.low, same.high) == (1.0, 1.0, 1.0)
    assert math.isnan(interval_of(np.ones((1, 1)), lambda sums: sums[..., 0]).low)


def test_intervals_agree_with_scipys_bootstrap_of_dates() -> None:
    rng = np.random.default_rng(3)
    sizes = rng.integers(1, 9, 40)
    right = rng.binomial(sizes, rng.beta(2, 2, 40)).astype(float)
    found = interval_of(np.stack([right, sizes.astype(float)], -1), lambda sums: sums[..., 0] / sums[..., 1], small=False)
    theirs = stats.bootstrap(
        (right, sizes), lambda r, n, axis=-1: r.sum(axis) / n.sum(axis), paired=True, method="percentile", n_resamples=5000,
        rng=np.random.default_rng(4),
    ).confidence_interval  # fmt: skip
    assert found.low == pytest.approx(theirs.low, abs=0.02)
    assert found.high == pytest.approx(theirs.high, abs=0.02)
    wider = interval_of(np.stack([right, sizes.astype(float)], -1), lambda sums: sums[..., 0] / sums[..., 1])
    assert wider.low < found.low < found.high < wider.high


def test_signs_are_flipped_as_in_a_permutation_test_of_scipys() -> None:
    few = np.array([1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4])  # Student's sleep data, the paired differences
    theirs = stats.permutation_test((few,), np.sum, permutation_type="samples", n_resamples=np.inf).pvalue
    assert flip_signs(few) == pytest.approx(theirs)
    assert flip_signs(few) == pytest.approx(2 / 2**9)
    assert flip_signs(np.zeros(5)) == 1.0
    many = np.random.default_rng(0).normal(0.1, 1, 200)
    sampled = stats.permutation_test((many,), np.sum, permutation_type="samples", n_resamples=9999, rng=np.random.default_rng(1))
    assert flip_signs(many) == pytest.approx(sampled.pvalue, abs=0.03)


def test_one_date_has_no_interval_and_its_report_is_json(tmp_path: Path) -> None:
    made = [Prediction(str(i), "A", "2024-01-01", "BUY", "SELL" if i else "BUY", "", None, 0.5, "x") for i in range(4)]
    found = report_actions(made, {"BUY": 3})
    write_json(tmp_path / "report.json", found.to_json())
    told = json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)
    assert told["accuracy"] == {"value": 0.25, "low": None, "high": None}
    assert told["calibration"] is None
    assert any("only one date" in warning for warning in told["warnings"])
    assert ["  95 %, by dates", "one date only", "-", ""] in action_rows(found)
    assert write_action_plot(found, tmp_path / "actions.png", "one date").stat().st_size > 1000


def test_a_difference_is_paired() -> None:
    truth = ["BUY", "SELL"] * 100
    mine = scored(truth, truth)
    worse = scored(truth, [*truth[:-20], *["HOLD"] * 20])
    ahead = accuracy_over(mine, worse)
    assert ahead.value == pytest.approx(0.1)
    assert 0.05 < ahead.low < ahead.value < ahead.high < 0.16
    assert accuracy_over(mine, mine).to_json() == {"value": 0.0, "low": 0.0, "high": 0.0}


def test_baselines_come_from_the_training_distribution() -> None:
    found = scored(["BUY", "BUY", "HOLD", "SELL"], ["BUY", "HOLD", "HOLD", "SELL"])
    base = baselines(found, {"HOLD": 60, "BUY": 30, "SELL": 10})
    assert base.label == "HOLD"
    assert base.majority.accuracy.value == 0.25
    assert base.prior == pytest.approx(0.3 * 0.5 + 0.6 * 0.25 + 0.1 * 0.25)
    assert base.ahead.value == pytest.approx(0.5)
    assert base.share["STRONG_SELL"] == 0.0


def test_brier_and_calibration_error_are_those_worked_by_hand() -> None:
    prior = {"rain": 0.5, "dry": 0.5}
    days = [("rain", 0.9), ("rain", 0.9), ("dry", 0.9), ("dry", 0.2)]
    found = calibrate([truth for truth, _ in days], [{"rain": p, "dry": 1 - p} for _, p in days], prior)
    assert found is not None
    # Summed over both classes: 2 (p - y)^2 each (Brier 1950).
    assert found.brier == pytest.approx(2 * (0.01 + 0.01 + 0.81 + 0.04) / 4)
    assert found.prior_brier == pytest.approx(0.5)
    assert found.skill == pytest.approx(1 - 0.435 / 0.5)
    # Of three predictions at 0.9 two are right; the one at 0.8 is right: 3/4 |2/3 - 0.9| + 1/4 |1 - 0.8|.
    assert found.ece == pytest.approx(0.75 * abs(2 / 3 - 0.9) + 0.25 * 0.2)
    assert found.log_loss == pytest.approx(-(2 * math.log(0.9) + math.log(0.1) + math.log(0.8)) / 4)
    assert [(each.n, each.right) for each in found.bins] == [(1, 1.0), (3, pytest.approx(2 / 3))]


def test_probabilities_that_are_missing_are_counted_and_none_at_all_is_no_calibration() -> None:
    prior = dict.fromkeys(ACTIONS, 0.2)
    sure = {"STRONG_BUY": 0.0, "BUY": 1.0, "HOLD": 0.0, "SELL": 0.0, "STRONG_SELL": 0.0}
    assert calibrate(["BUY"], [None], prior) is None
    found = calibrate(["BUY", "BUY", "HOLD"], [sure, None, sure], prior)
    assert found is not None
    assert (found.n, found.without, found.ece, found.brier) == (2, 1, 0.5, 1.0)
    assert found.prior_brier == pytest.approx(0.8)


@given(st.integers(0, 2**32 - 1))
def test_calibrated_probabilities_have_a_small_error(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(5), size=4000)
    truth = [ACTIONS[int(i)] for i in (p.cumsum(1) < rng.random(4000)[:, None]).sum(1)]
    found = calibrate(truth, [dict(zip(ACTIONS, row, strict=True)) for row in p.tolist()], dict.fromkeys(ACTIONS, 0.2))
    assert found is not None
    assert found.ece < 0.05
    assert found.skill > 0
