"""Predicted actions from CSV or JSON lines, and which way each of them trades."""

from __future__ import annotations

import csv
import datetime
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.recipe import UserError, parse_json

DIRECTIONS = {"STRONG_BUY": 1, "BUY": 1, "HOLD": 0, "SELL": -1, "STRONG_SELL": -1}
NEEDED = ("ticker", "as_of_date", "predicted")
LONGEST_FIELD = 1 << 28  # letters: an answer of a model may be long
DATE = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[ T].*)?", re.ASCII)  # a day, perhaps with a time


@dataclass(frozen=True)
class Signal:
    """What a model said of a ticker at the close of a day.

    Attributes:
        ticker, as_of: whose, and the day whose close it knows.
        action: what was said; None where it could not be read.
        confidence: 0 to 1; None where there is none.
        line: of the file, from 1.
    """

    ticker: str
    as_of: datetime.date
    action: str | None
    confidence: float | None = None
    line: int = 0

    @property
    def direction(self) -> int:
        """Return 1 to buy, -1 to sell, 0 to do nothing."""
        return 0 if self.action is None else DIRECTIONS[self.action]


@dataclass(frozen=True)
class Signals:
    """Signals in order of time. notes: what was left out."""

    source: str
    rows: tuple[Signal, ...]
    notes: tuple[str, ...] = ()

    @property
    def tickers(self) -> set[str]:
        """Return the tickers that were asked about."""
        return {row.ticker for row in self.rows}


def read_signals(path: str | Path, column: str = "predicted") -> Signals:
    """Read predictions: CSV or JSON lines with ticker, as_of_date, the action and perhaps confidence.

    `column` is that of the action; 'action' has the right ones.

    Raises:
        UserError: the file cannot be read, a column is missing, a date or an action is none, or two rows contradict each other.
    """
    path = Path(path)
    found: dict[tuple[str, datetime.date], Signal] = {}
    repeated = 0
    needed = (*NEEDED[:2], column)
    for line, record in _records(path):
        missing = next((name for name in needed if name not in record), None)
        if missing is not None:
            raise UserError(
                f"{path}, line {line}: no {missing} among {', '.join(map(str, record)) or 'nothing'}",
                f"predictions have the columns {', '.join(needed)}, and perhaps confidence",
            )
        signal = _signal(path, line, record, column)
        key = signal.ticker, signal.as_of
        other = found.setdefault(key, signal)
        if other is not signal:
            # Whichever was taken, the account would depend on the order of the lines.
            if other.action != signal.action:
                raise UserError(
                    f"{path}: {signal.ticker} on {signal.as_of} is {_said(other)} in line {other.line} and {_said(signal)} in "
                    f"line {line}",
                    "leave one of them out: an account can do one of the two",
                )
            repeated += 1
    if not found:
        raise UserError(f"{path} has no predictions", f"give it the columns {', '.join(needed)}")
    notes = (f"{repeated:,} predictions stand there twice: once is enough",) if repeated else ()
    return Signals(str(path), tuple(sorted(found.values(), key=lambda s: (s.as_of, s.ticker))), notes)


def _said(signal: Signal) -> str:
    return signal.action or "unparsable"


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line, record) of a CSV file with headings or of JSON lines, told apart by the first sign."""
    limit = csv.field_size_limit(LONGEST_FIELD)  # a text may be longer than the module's 131,072 letters
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            start = file.read(1)
            file.seek(0)
            if start in ("{", "["):
                yield from _json_lines(path, file)
                return
            reader = csv.DictReader(file)
            for record in reader:
                if None in record or None in record.values():
                    raise UserError(
                        f"{path}, line {reader.line_num}: {'more' if None in record else 'fewer'} cells than headings",
                        "quote texts with commas or line breaks",
                    )
                yield reader.line_num, record
    except FileNotFoundError:
        raise UserError(f"{path}: no such file", "windtunnel backtest PREDICTIONS --prices FILE") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder", "name the file of predictions in it: CSV or JSON lines") from None
    except (OSError, UnicodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as predictions: {error}", "give CSV or JSON lines in UTF-8") from None
    finally:
        csv.field_size_limit(limit)


def _json_lines(path: Path, file: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, text in enumerate(file, start=1):
        if not text.strip():
            continue
        try:
            record = parse_json(text)
        except ValueError as error:
            raise UserError(f"{path}, line {line} is no JSON: {error}", "give one record a line, or CSV") from None
        if not isinstance(record, dict):
            raise UserError(f"{path}, line {line} is no record", "give one record a line, or CSV")
        yield line, record


def _signal(path: Path, line: int, record: dict[str, Any], column: str) -> Signal:
    where = f"{path}, line {line}"
    ticker = str(record["ticker"] or "").strip()
    if not ticker:
        raise UserError(f"{where}: the ticker is missing", "give each prediction its ticker")
    try:
        found = DATE.fullmatch(str(record["as_of_date"]).strip())
        if found is None:
            raise ValueError
        as_of = datetime.date.fromisoformat(found[1])
    except ValueError:
        raise UserError(f"{where}: as_of_date is {record['as_of_date']!r}, no date", "write dates as 2025-01-31") from None
    action = str(record[column] or "").strip() or None
    if action is not None and action not in DIRECTIONS:
        raise UserError(
            f"{where}: {column} is {action!r}", f"expected {', '.join(DIRECTIONS)}, or nothing where it could not be read"
        )
    confidence = record.get("confidence")
    try:
        sure = None if confidence in (None, "") else float(confidence)
    except (TypeError, ValueError):
        sure = -1.0  # refused below, with what stands there
    if sure is not None and not 0 <= sure <= 1:
        raise UserError(f"{where}: confidence is {confidence!r}", "expected a number from 0 to 1, or nothing")
    return Signal(ticker, as_of, action, sure, line)
