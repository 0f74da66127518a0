"""Theses: strict records, splits by time, and generated ones whose labels can be learned from what was known."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet
from thesis_files import RIGHT, TODAY, recipe_of, spread, write_lines

from windtunnel.data import PreparedData, export_theses, prepare
from windtunnel.data.theses import Rejected, check_thesis
from windtunnel.data.theses_make import generated_records, indicators_of, labels_of, simulate
from windtunnel.recipe import ACTIONS, GeneratedTheses, ThesisCorpus, UserError

# Records.


def test_a_right_record_is_asked_and_answered_as_written() -> None:
    thesis = check_thesis(RIGHT, "a:1", TODAY, "Decide.")
    assert thesis.input == "Ticker: BRK.B\nAs of: 2024-03-15\nrsi_14: 61.2\ntrend: up"
    assert thesis.output == (
        "<reasoning>Earnings grew faster than the price for three quarters in a row.</reasoning>"
        "<support>Operating margin of 31 %.</support><action>BUY</action>"
    )
    assert len(thesis.uid) == 32
    again = {key: RIGHT[key] for key in ("ticker", "as_of_date", "indicators")} | {"output": thesis.output}
    assert check_thesis(again, "a:1", TODAY, "Decide.") == thesis
    assert check_thesis(RIGHT | {"action": "SELL"}, "a:1", TODAY, "Decide.").uid == thesis.uid  # what is asked is the same
    own = check_thesis(RIGHT | {"input": "Which?"}, "a:1", TODAY, "Decide.", own=True)
    assert (own.input, own.instruction) == ("Which?", "Decide.")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"ticker": "brk.b"}, "ticker not of the form"),
        ({"ticker": "ABCDEF"}, "ticker not of the form"),
        ({"ticker": "A.BCD"}, "ticker not of the form"),
        ({"ticker": "AB\n.C"}, "ticker not of the form"),
        ({"ticker": "ＡＢＣ"}, "ticker not of the form"),
        ({"ticker": None}, "ticker missing"),
        ({"ticker": 7}, "ticker missing"),
        ({"as_of_date": "15.3.2024"}, "date not written as year-month-day"),
        ({"as_of_date": "2024-3-15"}, "date not written as year-month-day"),
        ({"as_of_date": "20240315"}, "date not written as year-month-day"),
        ({"as_of_date": "2024-W11-5"}, "date not written as year-month-day"),
        ({"as_of_date": "２０２４-03-15"}, "date not written as year-month-day"),
        ({"as_of_date": "2024-03-15T10:00:00"}, "date not written as year-month-day"),
        ({"as_of_date": 1710460800}, "date missing"),
        ({"as_of_date": "2023-02-29"}, "date not in the calendar"),
        ({"as_of_date": "2026-01-02"}, "date in the future"),
        ({"as_of_date": "0024-03-15"}, "date before 1900"),
        ({"reasoning": "x" * 49}, "reasoning shorter than 50 characters"),
        ({"reasoning": " " * 60 + "short"}, "reasoning shorter than 50 characters"),
        ({"reasoning": "x" * 10_001}, "reasoning longer than 10000 characters"),
        ({"reasoning": None}, "reasoning missing"),
        ({"reasoning": {"text": "x" * 60}}, "reasoning is no text"),
        ({"reasoning": ["x" * 60]}, "reasoning is no text"),
        ({"reasoning": "x" * 60 + "\x00"}, "character that no text has"),
        ({"reasoning": "x" * 60 + "\ud800"}, "character that no text has"),
        ({"reasoning": "x" * 60 + "</action>"}, "tag of the answer inside a text"),
        ({"support": ""}, "support missing"),
        ({"support": "<Action>SELL"}, "tag of the answer inside a text"),
        ({"action": "buy"}, "action none of"),
        ({"action": "STRONG BUY"}, "action none of"),
        ({"action": "BUY or SELL"}, "action none of"),
        ({"action": ""}, "action missing"),
        ({"indicators": 3}, "indicators are no mapping"),
        ({"indicators": "[" * 100_000 + "]" * 100_000}, "indicators are no mapping"),
        ({"indicators": f'{{"a": {"[" * 201}{"]" * 201}}}'}, "indicators are no mapping"),
        ({"indicators": {"a": "x" * 1001}}, "indicator longer than"),
        ({"indicators": {str(i): 1 for i in range(300)}}, "more than 200 indicators"),
    ],
)
def test_what_is_no_thesis_is_rejected_by_name(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(Rejected) as caught:
        check_thesis(RIGHT | changed, "a:1", TODAY, "Decide.")
    assert caught.value.reason.startswith(reason)


# Splits.


def test_every_record_is_in_a_split_or_in_the_rejects_with_its_reason(tmp_path: Path) -> None:
    records = spread(300)
    records[5] |= {"action": "Buy"}
    records[6] |= {"as_of_date": "2099-01-01"}
    records += [records[0], records[1] | {"action": "SELL"}]
    file = write_lines(tmp_path / "a.jsonl", records)
    prepared = prepare(recipe_of(ThesisCorpus(files=[str(file)])), cache=tmp_path / "cache")
    theses = {name: list(prepared.theses(name)) for name in ("train", "validation", "test")}
    rejects = [json.loads(line) for line in (prepared.folder / "rejects.jsonl").read_text().splitlines()]
    assert sum(map(len, theses.values())) + len(rejects) == len(records) == prepared.facts["read"]
    reasons = {reject["source"].rpartition(":")[2]: reject["reason"] for reject in rejects}
    assert reasons["6"].startswith("action none of")
    assert reasons["7"] == "date in the future"
    assert reasons["301"] == "duplicate"
    assert reasons["302"] == "same question as an earlier record, another answer"
    assert prepared.facts["rejected"]["purged: in the gap between two periods"] == 14
    assert sum(prepared.facts["rejected"].values()) == len(rejects)
    assert max(t.as_of for t in theses["train"]) == datetime.date(2024, 10, 18)
    assert {t.as_of for t in theses["validation"]} == {
        datetime.date(2024, 10, 26) + datetime.timedelta(days=i) for i in range(60)
    }
    assert min(t.as_of for t in theses["test"]) == datetime.date(2025, 1, 1)
    assert any("14 purged" in note for note in prepared.notes)


def test_samples_stand_in_the_order_of_the_theses(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", spread(300))
    prepared = prepare(recipe_of(ThesisCorpus(files=[str(file)], template="plain")), cache=tmp_path / "cache")
    for name, split in (("train", prepared.train), ("validation", prepared.validation), ("test", prepared.test)):
        tokens: Any = split
        theses = list(prepared.theses(name))
        assert tokens.samples == len(theses)
        for number in (0, len(theses) // 2, len(theses) - 1):
            asked, answered = tokens.last_turn(number)
            assert prepared.tokenizer.decode(asked.tolist()).endswith(theses[number].input)
            assert prepared.tokenizer.decode(answered.tolist()) == theses[number].output


@pytest.mark.parametrize(
    ("split", "said"),
    [
        ({"test_start": "2026-01-01"}, "the validation period, from 2025-10-26 to 2025-12-24; those read are from"),
        ({"train_start": "2020-01-01", "test_start": "2022-01-01"}, "no thesis is in the train period"),
        ({"test_start": "2025-03-30"}, "no thesis is in the test period, from 2025-03-30 to the last day"),
    ],
)
def test_an_empty_split_is_refused_with_the_days_that_were_read(tmp_path: Path, split: dict[str, str], said: str) -> None:
    file = write_lines(tmp_path / "a.jsonl", spread(300))
    with pytest.raises(UserError, match=said):
        prepare(recipe_of(ThesisCorpus(files=[str(file)]), **split), cache=tmp_path / "cache")


def test_where_no_record_is_a_thesis_the_reasons_are_told(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", spread(20, action="HODL"))
    with pytest.raises(UserError, match=r"no record is a thesis; of 20 records 20 were rejected: 20 action none of .*HODL"):
        prepare(recipe_of(ThesisCorpus(files=[str(file)])), cache=tmp_path / "cache")


def as_xml(record: dict[str, Any]) -> str:
    fields = {key: value for key, value in record.items() if key not in ("ticker", "indicators")} | record["indicators"]
    children = "".join(f"<{name}>{value}</{name}>" for name, value in fields.items())
    return f"<thesis ticker='{record['ticker']}'>{children}</thesis>\n"


@pytest.mark.end_to_end
@pytest.mark.parametrize("form", ["jsonl", "xml", "latin-1"])
def test_several_processes_write_the_same_bytes_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    records = spread(400)
    for i, record in enumerate(records):
        record["reasoning"] += f" Number {i} of é." if i % 3 else " As before."
    records[5]["action"], records[9]["as_of_date"] = "Buy", "2099-01-01"
    records += [records[0], records[1] | {"action": "SELL"}, records[2] | {"support": "  Other support. "}]
    file = write_lines(tmp_path / "a.jsonl", records)
    if form != "jsonl":
        file = tmp_path / "a.xml"
        encoding = "utf-8" if form == "xml" else form
        head = f'<?xml version="1.0" encoding="{encoding}"?>\n<stock-theses>\n'
        file.write_bytes(f"{head}{''.join(map(as_xml, records))}</stock-theses>".encode(encoding))
    made = []
    for processes in (1, 2):
        for module, name, value in (("theses_xml", "PART", 8_000), ("formats", "_PART", 8_000), ("theses_split", "_AT_ONCE", 50)):
            monkeypatch.setattr(f"windtunnel.data.{module}.{name}", value if processes > 1 else 1 << 20)
        for module in ("theses_split", "theses_export"):
            monkeypatch.setattr(f"windtunnel.data.{module}.processes_for", lambda size, count=processes: count)
        prepared = prepare(recipe_of(ThesisCorpus(files=[str(file)])), cache=tmp_path / f"cache-{processes}")
        out = tmp_path / f"out-{processes}"
        export_theses(prepared, out)
        files = [*prepared.folder.glob("*.bin"), *prepared.folder.glob("*.jsonl"), *out.rglob("*.arrow")]
        made.append(
            ({path.relative_to(tmp_path).parts[-2:]: path.read_bytes() for path in files}, prepared.facts, prepared.notes)
        )
    one, two = made
    assert len(one[0]) == 10
    assert [content for _, content in sorted(one[0].items())] == [content for _, content in sorted(two[0].items())]
    assert one[1:] == two[1:]
    assert one[1]["rejected"]["duplicate"] == 1


def test_a_thesis_of_tomorrow_is_read_again_once_its_day_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_lines(tmp_path / "a.jsonl", [*spread(300), RIGHT | {"as_of_date": "2030-01-01"}])
    recipe = recipe_of(ThesisCorpus(files=[str(file)]))
    assert prepare(recipe, cache=tmp_path / "cache").facts["stale_from"] == "2030-01-01"
    assert prepare(recipe, cache=tmp_path / "cache").reused
    for module in ("prepared", "theses_split"):
        monkeypatch.setattr(f"windtunnel.data.{module}.today", lambda: datetime.date(2030, 1, 1))
    later = prepare(recipe, cache=tmp_path / "cache")
    assert (later.reused, later.facts["stale_from"]) == (False, None)
    assert max(thesis.as_of.year for thesis in later.theses("test")) == 2030


# Generated theses.


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    corpus = ThesisCorpus(generated=GeneratedTheses(records=1500, tickers=12))
    return prepare(recipe_of(corpus), cache=tmp_path_factory.mktemp("cache"))


def test_indicators_know_nothing_of_the_days_behind_them() -> None:
    market = simulate(GeneratedTheses(records=20, tickers=3, start="2024-01-01", end="2024-12-31"), 5)
    whole = indicators_of(market.prices)
    for day in (100, 180):
        known = indicators_of(market.prices[:, : day + 1])
        for name, values in known.items():
            assert np.allclose(values[:, day], whole[name][:, day], rtol=1e-9), name


def test_labels_are_returns_of_the_price_file(generated: PreparedData) -> None:
    """Taken anew from the prices written, a stock that rose most was to be bought."""
    assert generated.prices is not None
    table = parquet.read_table(generated.prices).to_pydict()
    prices: dict[str, dict[datetime.date, float]] = {}
    for day, ticker, close in zip(table["date"], table["ticker"], table["close"], strict=True):
        prices.setdefault(ticker, {})[day] = close
    ahead: dict[str, list[float]] = {action: [] for action in ACTIONS}
    for name in ("train", "validation", "test"):
        for thesis in generated.theses(name):
            days = sorted(prices[thesis.ticker])
            at = days.index(thesis.as_of)
            assert thesis.indicators["close"] == f"{prices[thesis.ticker][thesis.as_of]:.2f}"
            ahead[thesis.action].append(prices[thesis.ticker][days[at + 5]] / prices[thesis.ticker][thesis.as_of] - 1)
    means = [float(np.mean(ahead[action])) for action in ACTIONS]
    assert means == sorted(means, reverse=True)
    assert min(ahead["STRONG_BUY"]) > 0 > max(ahead["STRONG_SELL"])
    assert all(0.1 < len(found) / 1500 < 0.35 for found in ahead.values())


def accuracy(signal: float) -> float:
    """Of the best action for each fifth of the trend, learned on half of the days and measured on the rest."""
    made = GeneratedTheses(records=20, tickers=60, signal=signal, end="2023-12-31")
    market = simulate(made, 11)
    trend = indicators_of(market.prices)["trend_20d"][:, 80:-10]
    labels = labels_of(market.prices, made.horizon, signal)[:, 80:-10]
    half = trend.shape[1] // 2
    cuts = np.quantile(trend[:, :half], [0.2, 0.4, 0.6, 0.8])
    early, late = np.searchsorted(cuts, trend[:, : half - 10]), np.searchsorted(cuts, trend[:, half:])
    best = [np.bincount(labels[:, : half - 10][early == fifth], minlength=5).argmax() for fifth in range(5)]
    return float((np.array(best)[late] == labels[:, half:]).mean())


def test_a_trend_tells_the_label_where_there_is_a_signal_and_nothing_where_there_is_none() -> None:
    assert accuracy(0.0) < 0.23
    assert accuracy(0.4) > 0.27
    assert accuracy(0.4) < 0.6  # there is noise


def test_generated_theses_differ_and_come_again_from_their_seed(generated: PreparedData) -> None:
    theses = [thesis for name in ("train", "validation", "test") for thesis in generated.theses(name)]
    assert len({thesis.reasoning for thesis in theses}) == len(theses) == generated.facts["distinct_inputs"]
    made = GeneratedTheses(records=50, tickers=3)
    one, same, other = (list(generated_records(made, simulate(made, seed))) for seed in (1, 1, 2))
    assert one == same
    assert one != other
