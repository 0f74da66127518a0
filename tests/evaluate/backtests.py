"""Prices and signals made for tests, and the accounts that were computed by hand."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from windtunnel.evaluate import Prices, Signals
from windtunnel.evaluate.signals import Signal
from windtunnel.recipe import Backtest

FREE = {"cost_bps": 0.0, "slippage_bps": 0.0}


def trading_days(count: int) -> np.ndarray[Any, Any]:
    """Return weekdays from Monday, 1st of January 2024 on."""
    return np.busday_offset(np.datetime64("2024-01-01"), np.arange(count))


def make_prices(columns: dict[str, list[float | None]], opens: dict[str, list[float | None]] | None = None) -> Prices:
    """Return prices of a column for each ticker on weekdays."""

    def matrix(of: dict[str, list[float | None]]) -> np.ndarray[Any, Any]:
        return np.array([[np.nan if each is None else each for each in of[name]] for name in sorted(of)], float).T

    close = matrix(columns)
    return Prices(
        "made", trading_days(len(close)), tuple(sorted(columns)), close, None if opens is None else matrix(opens), False
    )


def make_signals(rows: list[tuple[str, int, str | None]]) -> tuple[Signal, ...]:
    """Return signals from (ticker, number of the day, action), in order of time."""
    days = trading_days(1 + max((day for _, day, _ in rows), default=0))
    made = [Signal(ticker, datetime.date.fromisoformat(str(days[day])), action) for ticker, day, action in rows]
    return tuple(sorted(made, key=lambda s: (s.as_of, s.ticker)))


def signals_of(rows: tuple[Signal, ...]) -> Signals:
    return Signals("made", rows)


def rules(**changes: Any) -> Backtest:
    """Return rules with whole numbers, as the cases write them, taken for the floats that the section wants."""
    floats = ("weight", "cost_bps", "slippage_bps", "cash")
    return Backtest.model_validate({key: float(value) if key in floats else value for key, value in changes.items()})


def hand_computed() -> list[dict[str, Any]]:
    """Return the cases of backtest_cases.yaml."""
    return yaml.safe_load((Path(__file__).parent / "backtest_cases.yaml").read_text(encoding="utf-8"))
