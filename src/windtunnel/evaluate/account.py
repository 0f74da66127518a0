"""The accounting of a backtest: signals become positions on the next trading day, every one of them paid for on both sides.

What is known at a day's close trades at the next trading day's price. A ticker has one position, that of its newest signal:
the same direction again holds it for longer, the other one ends it, and HOLD does nothing. No price after a day has any part
in what is held on it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from windtunnel.recipe import Backtest

from .bootstrap import Array
from .prices import Prices
from .signals import Signal

MOST_GAP = 5  # trading days without a price after which an order lapses, and a position counts as vanished
LATE = 7  # a signal whose next trading day is more than these days away is not traded
LEAST_ORDER = 0.01  # orders for which there is less money than this share of their size are not placed


@dataclass(frozen=True)
class Trade:
    """A position from its first order to its last.

    Attributes:
        ticker, side, as_of: whose, 'long' or 'short', the day of the signal.
        entered, entry: the day and the price, slippage included. left, exit: the same; None while it is open at the end.
        days: trading days held. pnl: dollars gained, costs included. costs: fees and slippage in dollars.
        gain: of the price in the position's direction, costs of both sides included.
        why: 'window' (held as long as asked), 'reversed' (another signal), 'vanished',
            'ruined' (the account was), or 'open' (at the end).
    """

    ticker: str
    side: str
    as_of: str
    entered: str
    entry: float
    left: str | None
    exit: float | None
    days: int
    pnl: float
    costs: float
    gain: float
    why: str


@dataclass(frozen=True)
class Account:
    """An account day by day, from the close before the first order to the last day on which something is held.

    Attributes:
        days: (D,) datetime64[D]. The first is before any trade.
        equity, cash: (D,) dollars at the close. long, short: (D,) value of what is held, short as a positive number.
        traded, costs: (D,) dollars bought and sold, and what that cost.
        shares: (D, N) of each ticker at the close.
        trades: by the day on which they were entered.
        events: how often what happened: waited, lapsed, vanished, cut, unpaid, unknown_ticker, late, after_end, no_shorts.
        named: kind of event -> the tickers concerned.
        ruined: the day on which losses had eaten all of it.
    """

    days: Array
    equity: Array
    cash: Array
    long: Array
    short: Array
    traded: Array
    costs: Array
    shares: Array
    trades: tuple[Trade, ...]
    events: dict[str, int]
    named: dict[str, tuple[str, ...]]
    ruined: str | None = None


@dataclass
class _Book:
    """What is held, by ticker: (N,) each."""

    rules: Backtest
    prices: Prices
    cash: float
    shares: Array
    last: Array  # prices known at the last close
    gap: Array  # trading days since there was one
    side: Array  # 1 long, -1 short, 0 nothing
    until: Array  # the row of `prices` on which the position ends
    wanted: Array  # direction of an order that waits for a price
    asked: Array  # the row since which it waits
    said: list[str]  # as_of of the newest signal
    entered: Array
    entry: Array
    flow: Array  # dollars that a position has brought so far
    fees: Array
    opened_by: list[str]
    trades: list[Trade] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    named: dict[str, dict[str, None]] = field(default_factory=dict)
    traded: float = 0.0
    costs: float = 0.0

    def note(self, kind: str, ticker: str) -> None:
        """Count an event and remember whose it was."""
        self.events[kind] += 1
        self.named.setdefault(kind, {})[ticker] = None

    def equity(self, marks: Array) -> float:
        """Return cash and what is held, in dollars at these prices (N,)."""
        return self.cash + float(_value(self.shares, marks).sum())

    def order(self, which: Array, change: Array, price: Array) -> None:
        """Buy (or sell, where negative) `change` shares of the tickers `which`, slippage and fee included."""
        slip, fee = self.rules.slippage_bps / 1e4, self.rules.cost_bps / 1e4
        paid = price * (1 + slip * np.sign(change))
        fees = np.abs(change) * paid * fee
        self.shares[which] += change
        self.flow[which] -= change * paid + fees
        self.cash -= float((change * paid + fees).sum())
        cost = fees + np.abs(change) * price * slip
        self.fees[which] += cost
        self.costs += float(cost.sum())
        self.traded += float((np.abs(change) * price).sum())

    def close(self, ticker: int, row: int, price: float, why: str, *, worthless: bool = False) -> None:
        """End a ticker's position at a price, and write the trade down."""
        side = self.side[ticker]
        if worthless:
            self.shares[ticker] = 0.0
            paid = 0.0
        else:
            self.order(np.array([ticker]), -self.shares[[ticker]], np.array([price]))
            self.shares[ticker] = 0.0  # exactly
            paid = price * (1 - side * self.rules.slippage_bps / 1e4)
        self._write(ticker, row, paid, self.flow[ticker], why)
        self.side[ticker] = 0

    def _write(self, ticker: int, row: int, paid: float, pnl: float, why: str) -> None:
        side, entry = int(self.side[ticker]), float(self.entry[ticker])
        days, is_open = self.prices.days, why == "open"
        fee = self.rules.cost_bps / 1e4
        # Of a share: what comes in less what goes out, and a fee on both, but for a position that nobody has closed.
        gain = (side * (paid - entry) - fee * (entry + (0 if is_open else paid))) / entry
        self.trades.append(
            Trade(
                ticker=self.prices.tickers[ticker],
                side="long" if side > 0 else "short",
                as_of=self.opened_by[ticker],
                entered=str(days[self.entered[ticker]]),
                entry=entry,
                left=None if is_open else str(days[row]),
                exit=None if is_open else float(paid),
                days=row - int(self.entered[ticker]),
                pnl=float(pnl),
                costs=float(self.fees[ticker]),
                gain=float(gain),
                why=why,
            )
        )


def run_account(prices: Prices, signals: tuple[Signal, ...], rules: Backtest) -> Account:
    """Trade the signals, which are in order of time, and return the account."""
    count = len(prices.tickers)
    book = _Book(
        rules, prices, rules.cash, np.zeros(count), np.full(count, np.nan), np.zeros(count, int), np.zeros(count, int),
        np.zeros(count, int), np.zeros(count, int), np.zeros(count, int), [""] * count, np.zeros(count, int), np.zeros(count),
        np.zeros(count), np.zeros(count), [""] * count,
    )  # fmt: skip
    arriving = _arriving(book, signals)
    first = min(arriving, default=None)
    if first is None:
        nothing = np.zeros(0)
        events, named = dict(book.events), {k: tuple(v) for k, v in book.named.items()}
        return Account(
            np.zeros(0, "datetime64[D]"), nothing, nothing, nothing, nothing, nothing, nothing, np.zeros((0, count)), (),
            events, named,
        )  # fmt: skip
    last_signal, ruined = max(arriving), None
    kept: list[tuple[float, ...]] = [(rules.cash, rules.cash, 0.0, 0.0, 0.0, 0.0)]
    held = [book.shares.copy()]
    for row in range(len(prices.days)):
        before = book.traded, book.costs
        if row >= first and ruined is None:
            ruined = _day(book, row, arriving.get(row, ()))
        # After the day's orders, which are placed while `last` is still yesterday's close.
        now = np.isfinite(prices.close[row])
        book.last = np.where(now, prices.close[row], book.last)
        book.gap = np.where(now, 0, book.gap + 1)
        if row >= first:
            value = _value(book.shares, book.last)
            long, short = float(value[value > 0].sum()), float(np.abs(value[value < 0]).sum())
            kept.append((book.equity(book.last), book.cash, long, short, book.traded - before[0], book.costs - before[1]))
            held.append(book.shares.copy())
            if row >= last_signal and not book.side.any() and not book.wanted.any():
                break
    for ticker in map(int, np.flatnonzero(book.side)):
        mark = float(book.last[ticker])
        book._write(ticker, row, mark, book.flow[ticker] + book.shares[ticker] * mark, "open")
    start = prices.days[first - 1] if first else np.datetime64(signals[0].as_of, "D")
    days = np.concatenate([[start], prices.days[first : row + 1]])
    trades = tuple(sorted(book.trades, key=lambda trade: (trade.entered, trade.ticker)))
    named = {kind: tuple(tickers) for kind, tickers in book.named.items()}
    equity, cash, long, short, traded, costs = np.array(kept).T
    return Account(
        days, equity, cash, long, short, traded, costs, np.stack(held), trades, dict(book.events), named, ruined
    )  # fmt: skip


def _value(shares: Array, marks: Array) -> Array:
    """Return dollars, (N,): nothing is worth nothing, also where there is no price."""
    return np.where(shares != 0, shares * np.nan_to_num(marks), 0.0)


def _arriving(book: _Book, signals: tuple[Signal, ...]) -> dict[int, list[tuple[int, Signal]]]:
    """Return row of the prices -> (ticker, signal) that may trade on it: the first trading day after that of the signal."""
    column = {ticker: i for i, ticker in enumerate(book.prices.tickers)}
    days = book.prices.days
    found: dict[int, list[tuple[int, Signal]]] = {}
    for signal in signals:
        if signal.direction == 0:
            continue
        if (signal.confidence if signal.confidence is not None else 1.0) < book.rules.min_confidence:
            book.events["unsure"] += 1
            continue
        if signal.ticker not in column:
            book.note("unknown_ticker", signal.ticker)
            continue
        day = np.datetime64(signal.as_of, "D")
        row = int(np.searchsorted(days, day, side="right"))
        if row == len(days):
            book.note("after_end", signal.ticker)
        elif (days[row] - day).astype(int) > LATE:
            book.note("late", signal.ticker)
        else:
            found.setdefault(row, []).append((column[signal.ticker], signal))
    return found


def _day(book: _Book, row: int, arriving: Any) -> str | None:
    """Trade on a day; return the day if losses have eaten the account."""
    prices, rules = book.prices, book.rules
    trade = (prices.open if rules.trade_at == "open" and prices.open is not None else prices.close)[row]
    there = np.isfinite(trade)
    marks = np.where(there, trade, book.last)
    if book.equity(marks) <= 0 and book.side.any():
        for ticker in map(int, np.flatnonzero(book.side)):
            book.close(ticker, row, float(marks[ticker]), "ruined")
        book.wanted[:] = 0
        return str(prices.days[row])
    # Ends come before openings: a reversal needs its ticker free, and what was closed pays for what is opened today.
    _take(book, row, arriving)
    ended = _end(book, row, trade, there)
    _open(book, row, trade, there, marks, ended)
    return None


def _take(book: _Book, row: int, arriving: Any) -> None:
    """Turn the day's signals into orders; a position in the same direction is held for longer instead."""
    for ticker, signal in arriving:
        if book.side[ticker] == signal.direction:
            book.until[ticker] = row + book.rules.hold
            book.wanted[ticker] = 0
            book.events["held_longer"] += 1
            continue
        if signal.direction < 0 and not book.rules.shorts and book.side[ticker] == 0:
            book.events["no_shorts"] += 1
            book.wanted[ticker] = 0
            continue
        book.wanted[ticker], book.asked[ticker], book.said[ticker] = signal.direction, row, str(signal.as_of)


def _end(book: _Book, row: int, trade: Array, there: Array) -> bool:
    """End positions whose time is over, that another signal reverses, or whose ticker has vanished."""
    ended = False
    for ticker in map(int, np.flatnonzero(book.side)):
        reverse = book.wanted[ticker] == -book.side[ticker]
        if there[ticker] and (reverse or row >= book.until[ticker]):
            book.close(ticker, row, float(trade[ticker]), "reversed" if reverse else "window")
        elif not there[ticker] and book.gap[ticker] >= MOST_GAP:
            book.note("vanished", book.prices.tickers[ticker])
            book.close(ticker, row, float(book.last[ticker]), "vanished", worthless=book.rules.vanished == "zero")
        else:
            continue
        ended = True
        if book.wanted[ticker] < 0 and not book.rules.shorts:
            book.wanted[ticker] = 0
    return ended


def _open(book: _Book, row: int, trade: Array, there: Array, marks: Array, ended: bool) -> None:
    """Open what is wanted and has a price; let what has waited too long lapse."""
    stale = (book.wanted != 0) & ~there & (row - book.asked >= MOST_GAP)
    for ticker in np.flatnonzero(stale):
        book.note("lapsed", book.prices.tickers[ticker])
    book.wanted[stale] = 0
    new = np.flatnonzero((book.wanted != 0) & (book.side == 0) & there)
    if book.rules.sizing == "fixed":
        new = _open_fixed(book, new, trade, marks)
    elif len(new) and _free(book, there, marks) < LEAST_ORDER:
        _leave_unpaid(book, new)
        new = new[:0]
    for ticker in new:
        book.side[ticker], book.wanted[ticker] = book.wanted[ticker], 0
        book.until[ticker], book.entered[ticker] = row + book.rules.hold, row
        book.entry[ticker] = trade[ticker] * (1 + book.side[ticker] * book.rules.slippage_bps / 1e4)
        book.opened_by[ticker] = book.said[ticker]
        book.events["waited"] += int(row > book.asked[ticker])
    if book.rules.sizing == "equal" and (ended or len(new)):
        book.flow[new] = book.fees[new] = 0.0
        _level(book, trade, there, marks)


def _open_fixed(book: _Book, new: Array, trade: Array, marks: Array) -> Array:
    """Order a share of the equity of each new ticker, less where the money does not reach; return those that were ordered."""
    if not len(new):
        return new
    equity = book.equity(marks)
    held = float(np.abs(_value(book.shares, marks)).sum())
    side = book.wanted[new]
    value = np.full(len(new), book.rules.weight * equity)
    share = max(0.0, equity - held) / float((value * (1 + _cost_share(book.rules, side))).sum())
    book.flow[new] = book.fees[new] = 0.0
    if share < LEAST_ORDER:
        _leave_unpaid(book, new)
        return new[:0]
    if share < 1.0:
        for ticker in new:
            book.note("cut", book.prices.tickers[ticker])
    book.order(new, side * min(1.0, share) * value / trade[new], trade[new])
    return new


def _leave_unpaid(book: _Book, new: Array) -> None:
    """Drop orders that there is no money for."""
    for ticker in new:
        book.note("unpaid", book.prices.tickers[ticker])
    book.wanted[new] = 0


def _free(book: _Book, there: Array, marks: Array) -> float:
    """Return the share of the equity that is not in positions which have no price today, and so cannot make room for others."""
    equity, value = book.equity(marks), _value(book.shares, marks)
    return 1.0 - float(np.abs(value[~there]).sum()) / equity


def _level(book: _Book, trade: Array, there: Array, marks: Array) -> None:
    """Give every position the same part of what the equity is after the costs of doing so."""
    held = np.flatnonzero(book.side)
    now = held[there[held]]
    if not len(now):
        return
    # The equal part depends on the costs, and the costs on the part. A ticker without a price keeps what it has: the others
    # share what it leaves, where it has grown beyond its part.
    equity, value = book.equity(marks), _value(book.shares, marks)
    stuck = float(np.abs(value[held[~there[held]]]).sum())
    part = equity / len(held)
    for _ in range(12):  # costs are a small share of what changes: each round is nearer by that share
        change = book.side[now] * part - value[now]
        costs = float((np.abs(change) * _cost_share(book.rules, np.sign(change))).sum())
        part = max(0.0, min((equity - costs) / len(held), (equity - costs - stuck) / len(now)))
    book.order(now, book.side[now] * part / trade[now] - book.shares[now], trade[now])


def _cost_share(rules: Backtest, side: Array) -> Array:
    """Return what an order costs as a share of its value at the price: slippage, and the fee on what is then paid."""
    slip, fee = rules.slippage_bps / 1e4, rules.cost_bps / 1e4
    return np.where(side > 0, (1 + slip) * (1 + fee) - 1, 1 - (1 - slip) * (1 - fee))
