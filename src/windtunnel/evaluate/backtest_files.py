"""A backtest as files: its trades and its account day by day as CSV, and a picture of equity and falls beside the benchmark's."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.files import write_atomic
from windtunnel.recipe import UserError

from .backtest import BacktestReport
from .pictures import BLUE, INK, VERMILION, draw_png, frame

TRADE = ("ticker", "side", "as_of", "entered", "entry", "left", "exit", "days", "pnl", "costs", "gain", "why")
DAY = ("date", "equity", "cash", "long", "short", "traded", "costs", "benchmark")


def write_backtest(
    report: BacktestReport, *, plot: Path | None = None, trades: Path | None = None, equity: Path | None = None
) -> list[Path]:
    """Write what is named, each file whole or not at all, and return the files: equity as .png, trades and days as CSV.

    Raises:
        UserError: a file cannot be written.
    """
    wanted: tuple[tuple[str, Path | None, Callable[[BacktestReport], str | bytes]], ...] = (
        ("--trades", trades, _trades_csv),
        ("--equity", equity, _equity_csv),
        ("--plot", plot, _picture),
    )
    for option, path, content in wanted:
        if path is None:
            continue
        try:
            write_atomic(path, content(report), durable=False)  # made again in a second, so it need not survive a power cut
        except OSError as error:
            why = error.strerror or error
            raise UserError(f"{option} {path} cannot be written: {why}", "name a file in a folder that is there") from None
    return [path for path in (trades, equity, plot) if path is not None]


def _picture(report: BacktestReport) -> bytes:
    return draw_png((8.5, 5.2), lambda figure: _draw(figure, report))


def _trades_csv(report: BacktestReport) -> str:
    """Return the trades as CSV, one a line, by the day on which they were entered."""
    return _csv(TRADE, [[getattr(trade, name) for name in TRADE] for trade in report.account.trades])


def _equity_csv(report: BacktestReport) -> str:
    """Return the account day by day as CSV, the benchmark beside it."""
    account = report.account
    columns = (account.equity, account.cash, account.long, account.short, account.traded, account.costs, report.benchmark)
    rows = [[str(day), *(float(column[i]) for column in columns)] for i, day in enumerate(account.days)]
    return _csv(DAY, rows)


def _csv(names: tuple[str, ...], rows: list[list[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(
        # Ten digits: cents of a hundred million dollars.
        [["" if cell is None else f"{cell:.10g}" if isinstance(cell, float) else cell for cell in row] for row in rows]
    )
    return text.getvalue()


def _draw(figure: Any, report: BacktestReport) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.ticker import FuncFormatter

    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    account, days = report.account, report.account.days
    curves = (
        (account.equity, BLUE, "predictions, after costs", "-"),
        (report.benchmark, VERMILION, "the same tickers in equal parts, bought and held", "--"),
    )
    for equity, colour, label, style in curves:
        upper.plot(days, equity, color=colour, linewidth=1.7, linestyle=style, label=label)
        fall = 100 * (equity / np.maximum.accumulate(equity) - 1)
        lower.plot(days, fall, color=colour, linewidth=1.2, linestyle=style)
    lower.fill_between(
        days, 100 * (account.equity / np.maximum.accumulate(account.equity) - 1), 0, color=BLUE, alpha=0.15, linewidth=0
    )
    upper.axhline(report.rules.cash, color=INK, linewidth=0.9, linestyle=":", label="cash")
    upper.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    upper.set_ylabel("equity, dollars", color=INK)
    lower.set_ylabel("fall, percent", color=INK)
    upper.set_title(_title(report), loc="left", color=INK, fontsize=10.5)
    upper.legend(frameon=False, labelcolor=INK, fontsize=9)
    for axes in (upper, lower):
        frame(axes)
        axes.margins(x=0.01)
    locator = AutoDateLocator()
    lower.xaxis.set_major_locator(locator)
    lower.xaxis.set_major_formatter(ConciseDateFormatter(locator))


def _title(report: BacktestReport) -> str:
    mine, other = report.figures, report.of_benchmark
    sharpe = "" if mine.sharpe is None else f", Sharpe {mine.sharpe:.2f}"
    other_sharpe = "" if other.sharpe is None else f", Sharpe {other.sharpe:.2f}"
    return f"{mine.total:+.1%}{sharpe} after costs; bought and held {other.total:+.1%}{other_sharpe}"
