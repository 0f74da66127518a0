"""Files of prices and predictions as people have them, and those that are refused: with the row and what to do."""

from __future__ import annotations

import datetime
import gzip
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from windtunnel.evaluate import read_prices, read_signals
from windtunnel.recipe import UserError

LONG = "date,ticker,close\n2024-01-02,B,10\n2024-01-02,A,1.5\n2024-01-03,A,1.75\n"
WIDE = "date,B,A\n2024-01-02,10,1.5\n2024-01-03,,1.75\n"


def write(folder: Path, text: str, name: str = "prices.csv") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_prices(path)
    assert caught.value.fix
    return caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        LONG,
        WIDE,
        LONG.replace(",", ";"),
        "\ufeff" + WIDE,
        LONG.replace("date,ticker,close", "Date,Symbol,Close").replace("2024-01-03", "2024-01-03 00:00:00-05:00"),
        WIDE.replace("date", ""),  # as pandas writes an index
        ",date,B,A\n0,2024-01-02,10,1.5\n1,2024-01-03,,1.75\n",  # and one that means nothing
        WIDE.replace("03,,", "03,NaN,"),
    ],
)
def test_long_and_wide_files_are_the_same_prices(tmp_path: Path, text: str) -> None:
    prices = read_prices(write(tmp_path, text))
    assert prices.tickers == ("A", "B")
    assert [str(day) for day in prices.days] == ["2024-01-02", "2024-01-03"]
    assert np.array_equal(prices.close, [[1.5, 10], [1.75, np.nan]], equal_nan=True)


def test_parquet_with_timestamps_of_a_time_zone_keeps_its_own_days(tmp_path: Path) -> None:
    zone = pyarrow.timestamp("ns", tz="America/New_York")
    at = [datetime.datetime(2024, 1, 2, 23, tzinfo=datetime.UTC), datetime.datetime(2024, 1, 4, 2, tzinfo=datetime.UTC)]
    table = pyarrow.table({"Date": pyarrow.array(at, zone), "A": [1.5, 1.75], "B": pyarrow.array([10, None], pyarrow.int64())})
    parquet.write_table(table, tmp_path / "prices.parquet")
    prices = read_prices(tmp_path / "prices.parquet")
    assert [str(day) for day in prices.days] == ["2024-01-02", "2024-01-03"]
    assert np.array_equal(prices.close, [[1.5, 10], [1.75, np.nan]], equal_nan=True)


def test_an_index_without_a_name_is_no_ticker(tmp_path: Path) -> None:
    days = pyarrow.array([datetime.datetime(2024, 1, 2), datetime.datetime(2024, 1, 3)], pyarrow.timestamp("us"))
    for name, other in (("__index_level_0__", None), ("Date", "__index_level_0__")):
        columns = {"A": [1.5, 1.75], name: days} | ({other: [5, 6]} if other else {})
        parquet.write_table(pyarrow.table(columns), tmp_path / "prices.parquet")
        prices = read_prices(tmp_path / "prices.parquet")
        assert prices.tickers == ("A",)
        assert [str(day) for day in prices.days] == ["2024-01-02", "2024-01-03"]


def test_rows_that_are_not_adjusted_are_named(tmp_path: Path) -> None:
    text = "date,ticker,close,adj_close\n2024-01-02,A,10,9\n2024-01-02,B,5,\n2024-01-03,B,,\n"
    prices = read_prices(write(tmp_path, text))
    assert prices.notes == ("1 rows have a close and no adj_close, and are left out (of 'B')",)


def test_compressed_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "prices.csv.gz").write_bytes(gzip.compress(LONG.encode()))
    assert read_prices(tmp_path / "prices.csv.gz").tickers == ("A", "B")


def test_an_adjusted_column_is_taken_before_the_close(tmp_path: Path) -> None:
    text = "date,ticker,open,close,adj_close\n2024-01-02,A,99,100,25\n2024-01-03,A,27,26,26\n"
    prices = read_prices(write(tmp_path, text))
    assert prices.adjusted
    assert prices.close[:, 0].tolist() == [25, 26]
    assert prices.open is None  # not adjusted
    assert not prices.jumps(0.3, {"A"})


def test_splits_are_named(tmp_path: Path) -> None:
    text = "date,A,B,C\n2024-01-02,100,10,10\n2024-01-03,25.5,100,12\n2024-01-04,26,101,30\n"
    jumps = read_prices(write(tmp_path, text)).jumps(0.3, {"A", "B", "C"})
    assert "B goes from 10 to 100 (+900%) on 2024-01-03: like a 1-for-10 reverse split" in jumps[0]
    assert "A goes from 100 to 25.5 (-74%) on 2024-01-03: like a 4-for-1 split" in jumps[1]
    assert jumps[2].startswith("C goes from 12 to 30 (+150%) on 2024-01-04")
    assert len(jumps) == 3


def test_weekends_that_repeat_friday_are_left_out_and_others_kept(tmp_path: Path) -> None:
    filled = "date,A\n2024-01-05,10\n2024-01-06,10\n2024-01-07,10\n2024-01-08,11\n"
    prices = read_prices(write(tmp_path, filled))
    assert len(prices.days) == 2
    assert "2 weekend days only repeat Friday's prices" in prices.notes[0]
    prices = read_prices(write(tmp_path, filled.replace("07,10", "07,12")))
    assert len(prices.days) == 3
    assert any("1 weekend days have prices of their own" in note for note in prices.notes)


def test_the_same_row_twice_is_counted_and_two_prices_for_a_day_are_refused(tmp_path: Path) -> None:
    assert "1 rows stand there twice" in read_prices(write(tmp_path, LONG + "2024-01-03,A,1.75\n")).notes[0]
    message = refusal(write(tmp_path, LONG + "2024-01-03,A,2\n"))
    assert "A has two closes on 2024-01-03: 1.75 (row 3) and 2 (row 4)" in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("date,ticker,close\n", "no rows"),
        (LONG.replace("1.75", "0"), "row 3: close is 0; a price is above zero"),
        (LONG.replace("1.75", "1e308"), "row 3: close is 1e+308; a price is from 1e-12 to 1e+12"),
        (LONG.replace("1.75", "5e-324"), "a price is from 1e-12 to 1e+12"),
        (LONG.replace("1.75", "-2"), "row 3: close is -2"),
        (LONG.replace("1.75", "inf"), "row 3: close is inf"),
        (LONG.replace("1.75", '"1,75"'), "row 3: close is '1,75', no number"),
        (LONG.replace("1.75", "1_75"), "row 3: close is '1_75', no number"),
        (LONG.replace("1.75", "\u0661\u0662"), "row 3: close is '\u0661\u0662', no number"),
        ("date,ticker,close,Close\n2024-01-02,A,1,2\n", "the columns 'close', 'Close' have one name"),
        (LONG.replace("2024-01-03", "01/03/2024"), "row 3: '01/03/2024' is no date"),
        (LONG.replace("2024-01-03", "2024-02-30"), "row 3: '2024-02-30' is no date"),
        (LONG.replace("2024-01-03", ""), "row 3: the date is missing"),
        (LONG.replace("03,A", "03,"), "row 3: the ticker is missing"),
        ("date,close\n2024-01-02,1\n", "none says whose prices they are"),
        ("date,ticker,volume\n2024-01-02,A,1\n", "no column of closes"),
        ("ticker,close\nA,1\n", "no column of dates"),
        ("date,A\n2024-01-02,1\n2024-01-02,1\n", "2024-01-02 has 2 rows"),
        ("date,A,A\n2024-01-02,1,1\n", "two columns have the name 'A'"),
        ("date,A\n2024-01-02,1,2\n", "Expected 2 columns, got 3"),
        ("Price,Close,Close\nTicker,A,B\nDate,,\n2024-01-02,1,2\n", "headings in several lines, as yfinance's"),
        ("date,A\n2024-01-02,\n", "has no prices"),
        ("date,ticker,close,adj_close\n2024-01-02,A,1,\n", "has no prices; 1 rows have a close and no adj_close"),
        ("date,ticker,open,close\n2024-01-02,A,1,2\n2024-01-02,A,3,2\n", "A has two opens on 2024-01-02: 1 (row 1) and 3"),
    ],
)
def test_prices_that_cannot_be_used_are_refused_with_the_row(tmp_path: Path, text: str, words: str) -> None:
    assert words in refusal(write(tmp_path, text))


def test_prices_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "none.csv")
    assert refusal(tmp_path) == f"{tmp_path} is a folder"
    (tmp_path / "half.parquet").write_bytes(b"PAR1half")
    assert "cannot be read as prices" in refusal(tmp_path / "half.parquet")
    (tmp_path / "utf16.csv").write_text(LONG, encoding="utf-16")
    assert refusal(tmp_path / "utf16.csv").endswith("is UTF-16, expected UTF-8")


# -- predictions -------------------------------------------------------------------------------------------------------------

ROWS = "uid,ticker,as_of_date,action,predicted,confidence,text\n"


def test_predictions_are_read_from_csv_and_json_lines(tmp_path: Path) -> None:
    csv = ROWS + '1,B,2024-01-03,BUY,STRONG_SELL,0.5,"a, b\nc"\n2,A,2024-01-02,HOLD,,,\n'
    lines = (
        '{"ticker": "B", "as_of_date": "2024-01-03", "action": "BUY", "predicted": "STRONG_SELL", "confidence": 0.5}\n\n'
        '{"ticker": "A", "as_of_date": "2024-01-02", "action": "HOLD", "predicted": null}\n'
    )
    for text, name in ((csv, "p.csv"), (lines, "p.jsonl")):
        found = read_signals(write(tmp_path, text, name)).rows
        said = [(s.ticker, str(s.as_of), s.action, s.confidence, s.direction) for s in found]
        assert said == [("A", "2024-01-02", None, None, 0), ("B", "2024-01-03", "STRONG_SELL", 0.5, -1)]
    assert [s.action for s in read_signals(tmp_path / "p.csv", "action").rows] == ["HOLD", "BUY"]


def test_a_text_of_a_million_letters_is_no_obstacle(tmp_path: Path) -> None:
    assert len(read_signals(write(tmp_path, f"{ROWS}1,A,2024-01-02,BUY,BUY,1,{'x' * 10**6}\n")).rows) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no predictions"),
        (ROWS, "no predictions"),
        ("ticker,as_of_date\nA,2024-01-02\n", "no predicted among ticker, as_of_date"),
        (ROWS + "1,A,2024-01-02,BUY,STRONG BUY,1,\n", "line 2: predicted is 'STRONG BUY'"),
        (ROWS + "1,A,yesterday,BUY,BUY,1,\n", "as_of_date is 'yesterday', no date"),
        (ROWS + "1,A,2024-01-0312,BUY,BUY,1,\n", "as_of_date is '2024-01-0312', no date"),
        (ROWS + "1,A,2024-W01-3,BUY,BUY,1,\n", "as_of_date is '2024-W01-3', no date"),
        (ROWS + "1,,2024-01-02,BUY,BUY,1,\n", "the ticker is missing"),
        (ROWS + "1,A,2024-01-02,BUY,BUY,150,\n", "confidence is '150'"),
        (ROWS + "1,A,2024-01-02,BUY,BUY,nan,\n", "confidence is 'nan'"),
        (ROWS + "1,A,2024-01-02\n", "line 2: fewer cells than headings"),
        (ROWS + "1,A,2024-01-02,BUY,BUY,1,a,b\n", "line 2: more cells than headings"),
        (ROWS + "1,A,2024-01-02,BUY,BUY,1,\n2,A,2024-01-02,BUY,SELL,1,\n", "A on 2024-01-02 is BUY in line 2 and SELL in line 3"),
        ('{"ticker": "A"\n', "line 1 is no JSON"),
        ('[{"ticker": "A"}]\n', "line 1 is no record"),
        (f'{{"ticker": {"[" * 100_000}', "line 1 is no JSON: nested more than 200 deep"),
    ],
)
def test_predictions_that_cannot_be_used_are_refused_with_the_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        read_signals(write(tmp_path, text, "p.csv"))
    assert words in caught.value.message
    assert caught.value.fix


def test_a_folder_in_the_place_of_predictions_is_called_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder") as caught:
        read_signals(tmp_path)
    assert caught.value.fix


def test_predictions_that_stand_there_twice_are_counted(tmp_path: Path) -> None:
    found = read_signals(write(tmp_path, ROWS + 2 * "1,A,2024-01-02,BUY,BUY,1,\n", "p.csv"))
    assert len(found.rows) == 1
    assert "1 predictions stand there twice" in found.notes[0]
