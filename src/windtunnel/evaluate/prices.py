"""Daily prices from CSV or Parquet, long or wide, as a matrix of days and tickers; what looks wrong in them is said."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from windtunnel.recipe import UserError

from .bootstrap import Array

if TYPE_CHECKING:
    import pyarrow

# How pandas calls an index without a name: a column of dates, or of numbers that mean nothing.
INDEX = ("", "unnamed: 0", "__index_level_0__")
DATES = ("date", "datetime", "timestamp", "day", "time", "index", *INDEX)
TICKERS = ("ticker", "symbol", "tic")
# Taken before plain closes: a split or dividend would look like a gain or loss.
ADJUSTED = ("adj close", "adj_close", "adjclose", "adjusted_close", "adjusted close", "close_adj", "close_adjusted")
CLOSES = ("close", "price", "close_price", "last")
OTHERS = ("open", "high", "low", "volume", "dividends", "stock splits", "capital gains", "vwap")
NULLS = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "-"]
ACCEPTED = "columns date, ticker and close (perhaps open and adj_close), or date and one column of closes for each ticker"
HEAD = 1 << 16  # bytes: the headings, however many tickers
NAMED = 5  # columns named in a message
# New shares for old ones: how shares are split, and joined the other way round.
SPLITS = (*((n, 1) for n in (2, 3, 4, 5, 6, 7, 8, 10, 15, 20, 25, 30, 50, 100)), (3, 2), (4, 3), (5, 4))
LEAST, MOST = 1e-12, 1e12  # of a price: with others, its ratios and the shares that money buys would be no numbers any more
NEAR_SPLIT = 0.06  # the day has a change of its own


@dataclass(frozen=True)
class Prices:
    """Prices of some tickers on the days on which any of them was traded.

    Attributes:
        source: the file.
        days: (T,) datetime64[D], rising. tickers: (N,), sorted.
        close: (T, N) float64, positive; NaN where a ticker has no price. open: the same, or None where the file has none.
        adjusted: the closes are of a column that is adjusted for splits and dividends.
        notes: what was left out, or looks wrong.
    """

    source: str
    days: Array
    tickers: tuple[str, ...]
    close: Array
    open: Array | None
    adjusted: bool
    notes: tuple[str, ...] = ()

    def jumps(self, limit: float, tickers: set[str]) -> list[str]:
        """Return a sentence for each change of these tickers from one price to the next beyond the limit, the largest first."""
        found: list[tuple[float, str]] = []
        for column in (i for i, ticker in enumerate(self.tickers) if ticker in tickers):
            rows = np.flatnonzero(np.isfinite(self.close[:, column]))
            ratios = self.close[rows[1:], column] / self.close[rows[:-1], column]
            for at in np.flatnonzero(np.abs(ratios - 1) > limit):
                before, after = self.close[rows[at], column], self.close[rows[at + 1], column]
                day, change = self.days[rows[at + 1]], ratios[at] - 1
                sentence = f"{self.tickers[column]} goes from {before:,.6g} to {after:,.6g} ({change:+.0%}) on {day}"
                guess = "" if self.adjusted else _split(float(ratios[at]))
                found.append((-abs(math.log(ratios[at])), sentence + guess))
        return [sentence for _, sentence in sorted(found)]


def read_prices(path: str | Path) -> Prices:
    """Read a file of daily prices.

    Raises:
        UserError: the file cannot be read, has other columns, dates that are none, two prices for a day, or prices that are
            not positive numbers; names the line.
    """
    path = Path(path)
    table = _table(path)
    # Reversed, so that of names that are alike the first column counts.
    names = {name.strip().lower(): name for name in reversed(table.column_names)}
    date = next((names[name] for name in DATES if name in names), None)
    if date is None:
        raise UserError(f"{path}: no column of dates among {_listed(table.column_names)}", f"give it {ACCEPTED}")
    days = _days(path, table[date])
    ticker = next((names[name] for name in TICKERS if name in names), None)
    prices = _long(path, table, days, ticker, names) if ticker is not None else _wide(path, table, days, date, names)
    return _without_filled_weekends(prices)


def _table(path: Path) -> pyarrow.Table:
    """Return the file as a table: of a CSV all columns are text, so that no number is guessed to be a date."""
    import pyarrow
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    try:
        with open(path, "rb") as file:
            start = file.read(4)
        if start == b"PAR1":
            table = parquet.read_table(path)
        elif not start:
            raise UserError(f"{path} is empty", f"give it {ACCEPTED}")
        else:
            with pyarrow.input_stream(str(path)) as stream:
                raw = stream.read(HEAD)
            if raw[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in raw[:64]:
                raise UserError(f"{path} is UTF-16, expected UTF-8", f"iconv -f utf-16 -t utf-8 {path} > FILE")
            head = raw.decode("utf-8-sig", errors="replace")
            first = head.splitlines()[0] if head.strip() else ""
            # The sign that divides the headings most often.
            mark = max(",;\t", key=first.count)
            names = next(csv.reader(io.StringIO(first), delimiter=mark), [])
            _refuse_header(path, names, head)
            table = arrow_csv.read_csv(
                str(path),
                parse_options=arrow_csv.ParseOptions(delimiter=mark),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pyarrow.string()), strings_can_be_null=True, null_values=NULLS
                ),
            )
    except (OSError, pyarrow.ArrowException) as error:
        if isinstance(error, FileNotFoundError):
            raise UserError(f"{path}: no such file", "--prices FILE, a CSV or Parquet file of daily prices") from None
        if isinstance(error, IsADirectoryError):
            raise UserError(f"{path} is a folder", "name the file of prices in it: CSV or Parquet") from None
        raise UserError(f"{path} cannot be read as prices: {error}", f"give it {ACCEPTED}, in UTF-8") from None
    if not table.num_rows:
        raise UserError(f"{path} has no rows", f"give it {ACCEPTED}")
    return table


def _refuse_header(path: Path, names: list[str], head: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    second = head.splitlines()[1].lower() if len(head.splitlines()) > 1 else ""
    # Yfinance writes Price,Close,Close,... and Ticker,AAPL,MSFT,... above the dates.
    if second.startswith("ticker,"):
        raise UserError(
            f"{path} has headings in several lines, as yfinance's tables have with several tickers",
            "write its closes alone, one column for each ticker: data['Close'].to_csv(FILE)",
        )
    if twice:
        raise UserError(f"{path}: two columns have the name {twice[0]!r}", "give each column a name of its own")
    known = [name for name in names if name.strip().lower() in (*DATES, *TICKERS, *ADJUSTED, *CLOSES, "open")]
    alike = [name for name in known if sum(name.strip().lower() == other.strip().lower() for other in known) > 1]
    if alike:
        raise UserError(f"{path}: the columns {_listed(alike)} have one name", "leave all but one of them out")


def _days(path: Path, column: Any) -> Array:
    """Return a column of dates as datetime64[D]: dates, timestamps (in their own time zone), or text that begins YYYY-MM-DD."""
    import pyarrow
    from pyarrow import compute

    column = column.combine_chunks()
    kind = column.type
    if pyarrow.types.is_timestamp(kind) and kind.tz is not None:
        column = compute.local_timestamp(column)  # the exchange's own day, not that of Greenwich
    if pyarrow.types.is_timestamp(column.type):
        column = compute.cast(column, pyarrow.date32(), safe=False)
    elif pyarrow.types.is_date64(kind):
        column = compute.cast(column, pyarrow.date32())
    elif pyarrow.types.is_large_string(kind) or pyarrow.types.is_string(kind):
        text = compute.utf8_trim_whitespace(column)
        good = compute.fill_null(compute.match_substring_regex(text, r"^\d{4}-\d{2}-\d{2}([ T].*)?$"), False)
        bad = np.flatnonzero(~good.to_numpy(zero_copy_only=False))
        if len(bad) == 0:
            text = compute.utf8_slice_codeunits(text, 0, 10)
            parsed = compute.strptime(text, format="%Y-%m-%d", unit="s", error_is_null=True)
            # A 30th of February becomes a day of March.
            same = compute.equal(compute.strftime(parsed, format="%Y-%m-%d"), text)
            bad = np.flatnonzero(~compute.fill_null(same, False).to_numpy(zero_copy_only=False))
            column = compute.cast(parsed, pyarrow.date32(), safe=False) if len(bad) == 0 else column
        if len(bad):
            shown = column[int(bad[0])].as_py()
            what = "the date is missing" if shown is None else f"{shown!r} is no date"
            raise UserError(f"{path}, row {bad[0] + 1}: {what}", "write dates as 2025-01-31")
    elif not pyarrow.types.is_date32(kind):
        raise UserError(f"{path}: the column of dates holds {kind}, no dates", "write dates as 2025-01-31")
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise UserError(f"{path}, row {row + 1}: the date is missing", "write dates as 2025-01-31")
    return column.to_numpy(zero_copy_only=False).astype("datetime64[D]")


def _numbers(path: Path, column: Any, name: str) -> Array:
    """Return a column as (rows,) float64 of positive numbers, NaN where there is none."""
    import pyarrow
    from pyarrow import compute

    column = column.combine_chunks()
    if pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type):
        text = compute.utf8_trim_whitespace(column)
        try:
            column = compute.cast(text, pyarrow.float64())
        except pyarrow.ArrowInvalid:
            row, shown = next((i, each) for i, each in enumerate(text.to_pylist()) if each is not None and not _is_number(each))
            raise UserError(
                f"{path}, row {row + 1}: {name} is {shown!r}, no number",
                "write prices as 1234.5, and nothing where there is none",
            ) from None
    elif not (
        pyarrow.types.is_floating(column.type) or pyarrow.types.is_integer(column.type) or pyarrow.types.is_decimal(column.type)
    ):
        raise UserError(f"{path}: column {name} holds {column.type}, no prices", f"give it {ACCEPTED}")
    values = compute.cast(column, pyarrow.float64()).to_numpy(zero_copy_only=False)
    bad = np.flatnonzero((values < LEAST) | (values > MOST))
    if len(bad):
        limits = "above zero" if values[bad[0]] <= 0 else f"from {LEAST:g} to {MOST:g}"
        raise UserError(
            f"{path}, row {bad[0] + 1}: {name} is {values[bad[0]]:g}; a price is {limits} ({len(bad):,} such rows)",
            "leave the cell empty, or the row out, where there was no trade",
        )
    return values


def _is_number(text: str) -> bool:
    """Return whether this is a number to Arrow, which knows no 1_000 and no digits of other scripts, as Python does."""
    import pyarrow

    try:
        pyarrow.scalar(text).cast(pyarrow.float64())
    except pyarrow.ArrowInvalid:
        return False
    return True


def _long(path: Path, table: Any, days: Array, ticker: str, names: dict[str, str]) -> Prices:
    """Return the prices of a table with a row for each day and ticker."""
    from pyarrow import compute

    close = next((names[name] for name in (*ADJUSTED, *CLOSES) if name in names), None)
    if close is None:
        raise UserError(f"{path}: no column of closes among {_listed(table.column_names)}", f"give it {ACCEPTED}")
    adjusted = close.strip().lower() in ADJUSTED
    column = compute.cast(table[ticker], "string").combine_chunks()
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise UserError(f"{path}, row {row + 1}: the ticker is missing", "give each row its ticker, or leave the row out")
    encoded = compute.utf8_trim_whitespace(column).dictionary_encode()
    raw = encoded.dictionary.to_pylist()
    order = np.argsort(raw)
    tickers = tuple(raw[i] for i in order)
    columns = np.argsort(order)[encoded.indices.to_numpy(zero_copy_only=False)]
    closes = _numbers(path, table[close], close)
    # An adjusted close goes with no open that is not.
    opens = _numbers(path, table[names["open"]], names["open"]) if "open" in names and not adjusted else None
    calendar, rows = np.unique(days, return_inverse=True)
    keys = rows * len(tickers) + columns
    kept, repeated = _refuse_contradictions(path, keys, closes, "closes", days, columns, tickers)
    if opens is not None and repeated:
        _refuse_contradictions(path, keys, opens, "opens", days, columns, tickers)
    notes = [f"{repeated:,} rows stand there twice, with the same price: once is enough"] if repeated else []
    plain = next((names[name] for name in CLOSES if name in names), None)
    if adjusted and plain is not None:
        lost = np.isnan(closes) & np.isfinite(_numbers(path, table[plain], plain))
        if lost.any():
            whose = _listed([tickers[i] for i in np.unique(columns[lost])])
            notes.append(f"{int(lost.sum()):,} rows have a {plain} and no {close}, and are left out (of {whose})")
    matrix = np.full((len(calendar), len(tickers)), np.nan)
    matrix[rows[kept], columns[kept]] = closes[kept]
    opened = None
    if opens is not None:
        opened = np.full_like(matrix, np.nan)
        opened[rows[kept], columns[kept]] = opens[kept]
    return Prices(str(path), calendar, tickers, matrix, opened, adjusted, tuple(notes))


def _refuse_contradictions(
    path: Path, keys: Array, values: Array, what: str, days: Array, columns: Array, tickers: tuple[str, ...]
) -> tuple[Array, int]:
    """Return the rows to keep, one for each day and ticker, and how many were left out as the same again."""
    order = np.argsort(keys, kind="stable")
    again = np.flatnonzero(keys[order][1:] == keys[order][:-1]) + 1
    first, second = order[again - 1], order[again]
    # The same price may be written with other digits.
    differ = ~np.isclose(values[first], values[second], rtol=1e-12, equal_nan=True)
    if differ.any():
        one, two = (int(each[np.flatnonzero(differ)[0]]) for each in (first, second))
        raise UserError(
            f"{path}: {tickers[columns[one]]} has two {what} on {days[one]}: {values[one]:g} (row {one + 1}) and "
            f"{values[two]:g} (row {two + 1}); {int(differ.sum()):,} such pairs",
            "leave one of them out",
        )
    kept = np.ones(len(keys), dtype=bool)
    kept[second] = False
    return kept, len(again)


def _wide(path: Path, table: Any, days: Array, date: str, names: dict[str, str]) -> Prices:
    """Return the prices of a table with a row for each day and a column for each ticker."""
    found = [name for name in table.column_names if name != date and name.strip().lower() not in INDEX]
    fields = [name for name in found if name.strip().lower() in (*ADJUSTED, *CLOSES, *OTHERS)]
    if fields or not found:
        raise UserError(
            f"{path} has the columns {_listed(table.column_names)}, and none says whose prices they are", f"give it {ACCEPTED}"
        )
    matrix = np.stack([_numbers(path, table[name], name) for name in found], axis=1)
    calendar, first, counts = np.unique(days, return_index=True, return_counts=True)
    if (counts > 1).any():
        day = calendar[np.flatnonzero(counts > 1)[0]]
        raise UserError(f"{path}: {day} has {counts.max()} rows", "give each day one row")
    tickers = [name.strip() for name in found]
    order = sorted(range(len(tickers)), key=tickers.__getitem__)
    return Prices(str(path), calendar, tuple(tickers[i] for i in order), matrix[first][:, order], None, False)


def _without_filled_weekends(prices: Prices) -> Prices:
    """Leave out days without a price, and weekends on which every price is the one before: they were filled in."""
    close, days = prices.close, prices.days
    there = np.isfinite(close).any(axis=1)
    weekday = (days.astype("int64") + 3) % 7  # 1970-01-01 was a Thursday
    last, filled = np.full(close.shape[1], np.nan), np.zeros(len(days), dtype=bool)
    for row in range(len(days)):
        now = close[row]
        known = np.isfinite(now)
        # Tables with a row for every day carry Friday's prices on; positions would be held for days that nobody trades.
        filled[row] = weekday[row] >= 5 and bool(np.all(now[known] == last[known]))
        last = np.where(known, now, last)
    kept = there & ~filled
    notes = list(prices.notes)
    if filled[there].any():
        notes.append(f"{int((filled & there).sum()):,} weekend days only repeat Friday's prices, and are left out")
    traded = there & ~filled & (weekday >= 5)
    if traded.any():
        notes.append(f"{int(traded.sum()):,} weekend days have prices of their own, and count as trading days")
    if not kept.any():
        raise UserError("; ".join((f"{prices.source} has no prices", *prices.notes)), f"give it {ACCEPTED}")
    opened = None if prices.open is None else prices.open[kept]
    return Prices(prices.source, days[kept], prices.tickers, close[kept], opened, prices.adjusted, tuple(notes))


def _split(ratio: float) -> str:
    """Return what a change of price by this ratio looks like, if it is near that of a split."""
    for new, old in SPLITS:
        for more, fewer, words in ((new, old, "split"), (old, new, "reverse split")):
            if abs(ratio * more / fewer - 1) < NEAR_SPLIT:
                return f": like a {more}-for-{fewer} {words} in prices that are not adjusted"
    return ""


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[: 2 * NAMED])
    return shown + (f" and {len(names) - 2 * NAMED} more" if len(names) > 2 * NAMED else "")
