"""A backtest in words: the table of figures, and remarks below it."""

from __future__ import annotations

from .backtest import BacktestReport
from .equity import Figures, Interval


def backtest_rows(report: BacktestReport) -> list[list[str]]:
    """Return rows of figure, predictions, benchmark, cash."""
    mine, other, cash = report.figures, report.of_benchmark, report.rules.cash
    account = report.account

    def fall(f: Figures) -> str:
        return f"{-f.drawdown:.2%}" if f.drawdown > 0 else "none"

    rows = [
        ["equity at the end", f"${account.equity[-1]:,.0f}", f"${report.benchmark[-1]:,.0f}", f"${cash:,.0f}"],
        ["return", f"{mine.total:+.2%}", f"{other.total:+.2%}", "0 %"],
        ["return a year", f"{mine.yearly:+.2%}", f"{other.yearly:+.2%}", "0 %"],
        *_interval("95 % interval", report.yearly_interval, "{:+.1%} to {:+.1%}"),
        ["volatility a year", f"{mine.volatility:.2%}", f"{other.volatility:.2%}", "0 %"],
        ["Sharpe, daily returns", _number(mine.sharpe), _number(other.sharpe), "-"],
        *_interval("95 % interval", report.sharpe_interval, "{:.2f} to {:.2f}"),
        ["largest fall", fall(mine), fall(other), "none"],
        ["turnover a year", f"{report.turnover:.2f} x equity", "", ""],
        ["exposure", _exposure(report), "", ""],
        ["fees and slippage", f"${account.costs.sum():,.0f}", "", ""],
    ]
    return rows


def backtest_remarks(report: BacktestReport) -> list[tuple[str, str]]:
    """Return (label, text): signals, trades, hit rate, rules, and what to know."""
    counts = {"unparsable" if action is None else action: n for action, n in report.signals.items()}
    said = ", ".join(f"{n:,} {action}" for action, n in sorted(counts.items(), key=lambda item: -item[1]))
    trades = report.account.trades
    won = sum(trade.pnl > 0 for trade in trades)
    longs = sum(trade.side == "long" for trade in trades)
    remarks = [
        ("signals", said),
        ("trades", f"{len(trades):,}: {longs:,} long, {len(trades) - longs:,} short; {won:,} with a gain after costs"),
        ("hit rate", _hit_rate(report)),
        ("against buying", _gain(report)),
        ("rules", _rules(report)),
    ]
    return remarks + [("note", note) for note in report.notes]


def _hit_rate(report: BacktestReport) -> str:
    hits = report.hits
    if not hits.n:
        return "no signal has prices as far as its window"
    interval = "" if hits.interval is None else " (95 % {:.1%} to {:.1%})".format(*hits.interval)
    return (
        f"{hits.right:,} of {hits.n:,} signals, {hits.right / hits.n:.1%}{interval}; always saying BUY would have hit "
        f"{hits.rising / hits.n:.1%}"
    )


def _gain(report: BacktestReport) -> str:
    if report.gain_interval is None:  # a day's gain, taken for every day of a year, is an absurd figure
        return "too few days for a difference a year and its interval"
    gain = report.figures.yearly - report.of_benchmark.yearly
    low, high = (100 * each for each in report.gain_interval)
    sure = "" if low > 0 or high < 0 else ": no difference is shown"
    return f"{100 * gain:+.2f} points a year (95 % {low:+.1f} to {high:+.1f}){sure}"


def _rules(report: BacktestReport) -> str:
    r = report.rules
    size = f"{r.weight:.3g} of the equity each" if r.sizing == "fixed" else "all of the equity in equal parts"
    return (
        f"{size}, at the next trading day's {r.trade_at}, held {r.hold} trading days; fee {r.cost_bps:g} bps and slippage "
        f"{r.slippage_bps:g} bps on both sides; shorts {'on' if r.shorts else 'off'}"
    )


def _exposure(report: BacktestReport) -> str:
    net = "" if not report.rules.shorts else f" (net {report.net_exposure:+.1%})"
    return f"{report.exposure:.1%}{net}"


def _interval(name: str, interval: Interval | None, form: str) -> list[list[str]]:
    return [] if interval is None else [[f"  {name}", form.format(*interval), "", ""]]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
