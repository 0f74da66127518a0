"""What predicted actions would have earned: an account's figures beside those of buying everything and of doing nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from windtunnel.recipe import Backtest, UserError

from .account import LATE, MOST_GAP, Account, run_account
from .equity import (
    LEAST_BLOCKS,
    YEAR,
    Array,
    Figures,
    Interval,
    block_length,
    daily_returns,
    figures,
    intervals,
    middle,
    resampled_days,
)
from .prices import Prices
from .signals import Signals

NAMED = 6  # tickers and jumps named in a note


@dataclass(frozen=True)
class Hits:
    """How often prices moved as signals said, from the next trading day on and before costs.

    Attributes:
        right, n: signals. rising: how many of these prices rose, so that always saying BUY is as often right.
        interval: 95 %, by bootstrap over blocks of days; None of too few days.
    """

    right: int
    n: int
    rising: int
    interval: Interval | None


@dataclass(frozen=True)
class BacktestReport:
    """A backtest.

    Attributes:
        account, benchmark: day by day; the benchmark is equity alone, (D,).
        figures, of_benchmark: of both.
        sharpe_interval, yearly_interval, gain_interval: 95 %, of Sharpe, of the yearly return, and of the yearly return less the
            benchmark's, by bootstrap over blocks of days; None of too few days.
        turnover: bought and sold, halved, over the mean equity, for a year.
        exposure, net_exposure: mean share of the equity that is held, long and short added, and long less short.
        signals: by action, with None for those that could not be read.
        notes: what to know.
    """

    rules: Backtest
    prices: str
    predictions: str
    account: Account
    benchmark: Array
    figures: Figures
    of_benchmark: Figures
    sharpe_interval: Interval | None
    yearly_interval: Interval | None
    gain_interval: Interval | None
    turnover: float
    exposure: float
    net_exposure: float
    hits: Hits
    signals: dict[str | None, int]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return stable keys. null: there is no such number."""
        account, trades = self.account, self.account.trades
        costs = float(account.costs.sum())
        return {
            "format": 1,  # of the JSON, which other programs read
            "predictions": self.predictions,
            "prices": self.prices,
            "rules": self.rules.model_dump(),
            "from": str(account.days[0]),
            "to": str(account.days[-1]),
            "trading_days": len(account.days) - 1,
            "final_equity": float(account.equity[-1]),
            **asdict(self.figures),
            "sharpe_interval": self.sharpe_interval,
            "yearly_interval": self.yearly_interval,
            "benchmark": asdict(self.of_benchmark),
            "yearly_over_benchmark": self.figures.yearly - self.of_benchmark.yearly,
            "yearly_over_benchmark_interval": self.gain_interval,
            # Doing nothing, the third thing to compare with: cash earns nothing here.
            "cash": {"total": 0.0, "yearly": 0.0},
            "turnover": self.turnover,
            "exposure": self.exposure,
            "net_exposure": self.net_exposure,
            "costs": costs,
            "trades": len(trades),
            "trades_won": sum(trade.pnl > 0 for trade in trades),
            "hits": asdict(self.hits),
            "signals": {"unparsable" if action is None else action: n for action, n in self.signals.items()},
            "events": account.events,
            "named": account.named,
            "ruined": account.ruined,
            "notes": list(self.notes),
        }


def run_backtest(signals: Signals, prices: Prices, rules: Backtest) -> BacktestReport:
    """Trade predictions on prices by the rules, and measure what came of it.

    Raises:
        UserError: the prices have no opens and trades are made at them, or no signal meets a price.
    """
    if rules.trade_at == "open" and prices.open is None:
        what = "opens that are adjusted as its closes are" if prices.adjusted else "opens beside its closes"
        raise UserError(f"{prices.source} has no {what}", "--trade-at close, or a file with the columns open and close alone")
    account = run_account(prices, signals.rows, rules)
    if not len(account.days):
        raise UserError(
            f"nothing is traded: {_why_nothing(signals, prices, account)}", "compare the two files' tickers and dates"
        )
    benchmark = _buy_and_hold(prices, signals.tickers, account, rules)
    mine, other = daily_returns(account.equity), daily_returns(benchmark)
    sharpe, yearly, gain = intervals(mine, other, block=block_length(len(mine), rules.hold))
    gross, mean = account.long + account.short, float(account.equity.mean())
    alive = account.equity > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        exposure, net = (np.where(alive, value / account.equity, 0.0)[1:] for value in (gross, account.long - account.short))
    return BacktestReport(
        rules=rules,
        prices=prices.source,
        predictions=signals.source,
        account=account,
        benchmark=benchmark,
        figures=figures(account.days, account.equity),
        of_benchmark=figures(account.days, benchmark),
        sharpe_interval=sharpe,
        yearly_interval=yearly,
        gain_interval=gain,
        turnover=float(account.traded.sum()) / 2 / mean * YEAR / len(mine) if mean > 0 else math.nan,
        exposure=float(exposure.mean()),
        net_exposure=float(net.mean()),
        hits=_hits(signals, prices, rules),
        signals=dict(Counter(row.action for row in signals.rows)),
        notes=(*signals.notes, *prices.notes, *_notes(signals, prices, account, rules)),
    )


def _buy_and_hold(prices: Prices, tickers: set[str], account: Account, rules: Backtest) -> Array:
    """Return the equity, (D,), of buying equal parts of all tickers on the account's first day and keeping them.

    A ticker is bought at its first price; until then its part is cash. Costs and vanished tickers are as the rules say.
    """
    # The tickers that signals are about, bought or not: others were never a choice.
    columns = [i for i, ticker in enumerate(prices.tickers) if ticker in tickers]
    begin, end = np.searchsorted(prices.days, [account.days[1], account.days[-1]])
    bought = prices.close if rules.trade_at == "close" or prices.open is None else prices.open
    # Each part starts as 1: what is left of it for shares after slippage and fee.
    paid = 1 / ((1 + rules.slippage_bps / 1e4) * (1 + rules.cost_bps / 1e4))
    worth = np.ones((end - begin + 2, len(columns)))
    for place, column in enumerate(columns):
        value, shares, gap = 1.0, 0.0, 0
        for row in range(begin, end + 1):
            entry, price = bought[row, column], prices.close[row, column]
            if not shares and math.isfinite(entry):
                shares = paid / entry
            gap = 0 if math.isfinite(price) else gap + 1
            if shares and math.isfinite(price):
                value = shares * price
            elif shares and gap > MOST_GAP and rules.vanished == "zero":
                value = 0.0
            worth[row - begin + 1, place] = value
    return rules.cash * worth.mean(axis=1)


def _hits(signals: Signals, prices: Prices, rules: Backtest) -> Hits:
    """Compare each signal's direction with its price from the next trading day to `hold` trading days after that."""
    column = {ticker: i for i, ticker in enumerate(prices.tickers)}
    by_day: dict[int, list[tuple[int, int]]] = {}
    for signal in signals.rows:
        row = int(np.searchsorted(prices.days, np.datetime64(signal.as_of, "D"), side="right"))
        if not signal.direction or signal.ticker not in column or row + rules.hold >= len(prices.days):
            continue
        before, after = prices.close[[row, row + rules.hold], column[signal.ticker]]
        if math.isfinite(before) and math.isfinite(after):
            # A price that has not moved is no hit for either side.
            right = after > before if signal.direction > 0 else after < before
            by_day.setdefault(row, []).append((int(right), int(after > before)))
    pairs = [pair for found in by_day.values() for pair in found]
    right, rising = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
    return Hits(right, len(pairs), rising, _hit_interval(by_day, rules.hold))


def _hit_interval(by_day: dict[int, list[tuple[int, int]]], hold: int) -> Interval | None:
    """Return the interval of the share of signals that are right, of row -> (right, rose) of its signals."""
    days = np.array([row - min(by_day) for row in by_day], int)
    length = int(days.max()) + 1 if len(days) else 0
    block = block_length(length, hold)
    if length < LEAST_BLOCKS * block:
        return None
    right, number = np.zeros(length), np.zeros(length)
    right[days] = [sum(pair[0] for pair in found) for found in by_day.values()]
    number[days] = [len(found) for found in by_day.values()]
    shares = []
    for chosen in resampled_days(length, block):
        drawn = number[chosen].sum(axis=1)
        shares.append(np.where(drawn > 0, right[chosen].sum(axis=1) / np.maximum(drawn, 1), np.nan))
    return middle(np.concatenate(shares))


def _why_nothing(signals: Signals, prices: Prices, account: Account) -> str:
    directed = [row for row in signals.rows if row.direction]
    if not directed:
        unread = sum(row.action is None for row in signals.rows)
        return f"of {len(signals.rows):,} predictions none says to buy or to sell ({unread:,} could not be read)"
    said = f"{len(directed):,} signals from {directed[0].as_of} to {directed[-1].as_of}"
    here = f"prices of {len(prices.tickers):,} tickers from {prices.days[0]} to {prices.days[-1]}"
    asked = account.named.get("unknown_ticker", ())
    names = f"; signals of {_some(asked)}, prices of {_some(prices.tickers)}" if asked else ""
    return f"{said}, {here}: {', '.join(f'{name} {n:,}' for name, n in _untraded(account)) or 'none meets'}{names}"


def _untraded(account: Account) -> list[tuple[str, int]]:
    words = {
        "unknown_ticker": "of tickers without prices", "after_end": "after the last price",
        "late": f"more than {LATE} days before the next price", "unsure": "of too little confidence",
    }  # fmt: skip
    return [(said, account.events[kind]) for kind, said in words.items() if kind in account.events]


def _notes(signals: Signals, prices: Prices, account: Account, rules: Backtest) -> list[str]:
    """Return what happened that a reader of the figures has to know."""
    notes = [f"jump: {line}" for line in prices.jumps(rules.jump, signals.tickers)]
    if len(notes) > NAMED:
        notes = [*notes[:NAMED], f"jump: {len(notes) - NAMED:,} more changes beyond {rules.jump:.0%} from one day to the next"]

    events = account.events
    worth = "nothing" if rules.vanished == "zero" else "their last price"
    words = {
        "vanished": f"positions without a price for {MOST_GAP} trading days, worth {worth} from then on",
        "unknown_ticker": "signals of tickers that have no prices, not traded",
        "after_end": "signals with no trading day after them, not traded",
        "late": f"signals more than {LATE} days before the next price, not traded",
        "lapsed": f"orders that found no price for {MOST_GAP} trading days, and lapsed",
        "cut": "orders made smaller because the money did not reach",
        "unpaid": "orders not placed because no money was left",
    }
    notes += [f"{said}: {events[kind]:,} ({_some(account.named[kind])})" for kind, said in words.items() if kind in events]
    gone = [ticker for ticker in prices.tickers if ticker in signals.tickers and _ends_early(prices, ticker)]
    if gone:
        notes.append(
            f"tickers whose prices end before the file does, as of shares no longer listed: {len(gone):,} ({_some(gone)})"
        )
    if "no_shorts" in events:
        notes.append(f"sell signals with nothing to sell, while shorts are off: {events['no_shorts']:,}")
    still = sum(trade.why == "open" for trade in account.trades)
    if still:
        notes.append(f"positions still open on the last day, which count at its price: {still:,}")
    if account.ruined:
        notes.append(f"on {account.ruined} losses had eaten the account: all was closed, and nothing is traded after that")
    return notes


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED:,} more" if len(names) > NAMED else "")


def _ends_early(prices: Prices, ticker: str) -> bool:
    rows = np.flatnonzero(np.isfinite(prices.close[:, prices.tickers.index(ticker)]))
    return bool(len(rows)) and len(prices.days) - 1 - int(rows[-1]) > MOST_GAP
