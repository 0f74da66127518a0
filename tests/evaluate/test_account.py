"""The account of a backtest: equal to what was computed by hand, and what must hold of any prices and signals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from backtests import FREE, hand_computed, make_prices, make_signals, rules
from hypothesis import example, given, settings
from hypothesis import strategies as st

from windtunnel.evaluate import run_account
from windtunnel.evaluate.account import Account
from windtunnel.recipe import Backtest

DIRECTED = ("STRONG_BUY", "BUY", "SELL", "STRONG_SELL")
REVERSED = {"STRONG_BUY": "STRONG_SELL", "BUY": "SELL", "HOLD": "HOLD", "SELL": "BUY", "STRONG_SELL": "STRONG_BUY"}
TICKERS = ("A", "B", "C")


@pytest.mark.parametrize("case", hand_computed(), ids=lambda case: case["name"])
def test_accounts_are_as_computed_by_hand(case: dict[str, Any]) -> None:
    account = run_account(make_prices(case["prices"]), make_signals(case["signals"]), rules(**case["rules"]))
    assert account.equity == pytest.approx(case["equity"], abs=0.005)


def test_trades_say_what_was_paid() -> None:
    account = run_account(
        make_prices({"A": [100, 100, 110, 121, 121]}), make_signals([("A", 0, "BUY")]), rules(hold=2, weight=0.1)
    )
    (trade,) = account.trades
    assert (trade.side, trade.as_of, trade.entered, trade.left, trade.days, trade.why) == (
        "long", "2024-01-01", "2024-01-02", "2024-01-04", 2, "window",
    )  # fmt: skip
    assert (trade.entry, trade.exit) == pytest.approx((100.1, 120.879))
    assert trade.pnl == pytest.approx(account.equity[-1] - 1_000_000)
    # 120.879 less 100.1 less both fees, of 100.1
    assert trade.gain == pytest.approx((120.879 * 0.9995 - 100.1 * 1.0005) / 100.1)
    assert trade.costs == pytest.approx(100 + 50.05 + 121 + 60.4395)


def test_open_prices_trade_and_closes_mark() -> None:
    prices = make_prices({"A": [100, 104, 110, 120]}, {"A": [100, 102, 108, 115]})
    account = run_account(prices, make_signals([("A", 0, "BUY")]), rules(hold=2, weight=0.102, trade_at="open", **FREE))
    # 1,000 shares at 102, marked at 104 and 110, sold at 115.
    assert account.equity == pytest.approx([1_000_000, 1_002_000, 1_008_000, 1_013_000])


@pytest.mark.parametrize("action", ["HOLD", None, "SELL", "STRONG_SELL"])
def test_what_buys_nothing_leaves_the_cash_alone(action: str | None) -> None:
    account = run_account(make_prices({"A": [100, 50, 200]}), make_signals([("A", 0, action)]), rules())
    assert not account.trades
    assert (account.equity == 1_000_000).all()


def test_signals_of_a_weekend_trade_on_monday() -> None:
    import datetime

    from windtunnel.evaluate.signals import Signal

    prices = make_prices({"A": [100, 100, 100, 100, 100, 120, 132]})  # Monday to Friday, Monday, Tuesday
    saturday = Signal("A", datetime.date(2024, 1, 6), "BUY")
    account = run_account(prices, (saturday,), rules(hold=1, weight=1.0, **FREE))
    assert [str(day) for day in account.days] == ["2024-01-05", "2024-01-08", "2024-01-09"]
    assert account.equity == pytest.approx([1_000_000, 1_000_000, 1_100_000])


def test_an_order_without_a_price_lapses() -> None:
    prices = make_prices({"A": [100, *[None] * 7, 200, 400], "B": [1] * 10})
    account = run_account(prices, make_signals([("A", 0, "BUY")]), rules())
    assert account.events["lapsed"] == 1
    assert not account.trades


def test_a_short_that_ruins_the_account_ends_it() -> None:
    prices = make_prices({"A": [100, 100, 250, 10, 10]})
    signals = make_signals([("A", 0, "SELL"), ("A", 2, "SELL")])
    account = run_account(prices, signals, rules(sizing="equal", shorts=True, **FREE))
    assert account.ruined == "2024-01-03"
    assert [trade.why for trade in account.trades] == ["ruined"]
    assert account.equity[-1] == pytest.approx(-500_000)  # the debt stays; nothing is traded after it


# -- what holds of any prices and signals ------------------------------------------------------------------------------------

ratios = st.floats(0.7, 1.4)


@st.composite
def markets(draw: st.DrawFn, days: int = 14) -> dict[str, list[float | None]]:
    """Prices of three tickers with gaps; B has all, so that the calendar is the same whatever is drawn."""
    found: dict[str, list[float | None]] = {}
    for ticker in TICKERS:
        path = 100 * np.cumprod(draw(st.lists(ratios, min_size=days, max_size=days)))
        gaps = draw(st.sets(st.integers(0, days - 1), max_size=3)) if ticker != "B" else set()
        found[ticker] = [None if i in gaps else float(price) for i, price in enumerate(path)]
    return found


actions = st.sampled_from((*DIRECTED, "HOLD"))
said = st.dictionaries(st.tuples(st.sampled_from(TICKERS), st.integers(0, 12)), actions, min_size=1, max_size=12)
choices = st.fixed_dictionaries(
    {
        "hold": st.integers(1, 6),
        "weight": st.sampled_from([0.02, 0.3, 1.0]),
        "sizing": st.sampled_from(["fixed", "equal"]),
        "vanished": st.sampled_from(["last", "zero"]),
        "cost_bps": st.sampled_from([0.0, 5.0, 100.0]),
        "slippage_bps": st.sampled_from([0.0, 10.0, 100.0]),
    }
)


def run(market: dict[str, list[float | None]], asked: dict[tuple[str, int], str], chosen: dict[str, Any]) -> Account:
    return run_account(make_prices(market), make_signals([(t, d, a) for (t, d), a in asked.items()]), Backtest(**chosen))


@settings(max_examples=150, deadline=None)
@given(markets(), said, choices)
def test_equity_is_cash_and_positions_and_cash_is_never_borrowed(market: Any, asked: Any, chosen: Any) -> None:
    account = run(market, asked, chosen)
    assert account.equity == pytest.approx(account.cash + account.long - account.short, rel=1e-9)
    assert (account.equity > 0).all()
    assert (account.cash > -1e-6).all()
    assert (account.short == 0).all()
    assert (account.shares >= -1e-12).all()
    gained = sum(trade.pnl for trade in account.trades)
    assert gained == pytest.approx(account.equity[-1] - 1_000_000 if len(account.equity) else 0.0, abs=1e-3)
    assert sum(trade.costs for trade in account.trades) == pytest.approx(account.costs.sum(), abs=1e-3)


# A short that has lost more than there is left, and has no price on the day another order comes.
STUCK = {ticker: [100.0] * 14 for ticker in TICKERS} | {"A": [100.0] * 7 + [125.0, None] + [125.0] * 5}
EQUAL = {"hold": 2, "weight": 0.02, "sizing": "equal", "vanished": "last", "cost_bps": 0.0, "slippage_bps": 0.0}


@settings(max_examples=100, deadline=None)
@example(STUCK, {("A", 5): "SELL", ("B", 7): "STRONG_BUY"}, EQUAL)
@given(markets(), said, choices)
def test_no_more_is_held_than_there_is_at_the_time_of_an_order(market: Any, asked: Any, chosen: Any) -> None:
    account = run(market, asked, chosen | {"shorts": True})
    opened = {trade.entered for trade in account.trades}
    for day, equity, long, short in zip(account.days, account.equity, account.long, account.short, strict=True):
        if str(day) in opened:
            assert long + short <= equity * (1 + 1e-9)


@settings(max_examples=150, deadline=None)
@given(markets(), markets(), said, choices, st.integers(1, 12), st.booleans())
def test_later_prices_have_no_part_in_what_is_held(
    market: Any, other: Any, asked: Any, chosen: Any, day: int, shorts: bool
) -> None:
    changed = {ticker: [*market[ticker][: day + 1], *other[ticker][day + 1 :]] for ticker in TICKERS}
    mine, its = (run(each, asked, chosen | {"shorts": shorts}) for each in (market, changed))
    last = make_prices(market).days[day]
    upto = [int((each.days <= last).sum()) for each in (mine, its)]
    rows = min(upto)
    assert np.array_equal(mine.shares[:rows], its.shares[:rows])
    assert np.array_equal(mine.equity[:rows], its.equity[:rows])
    # An account that ends earlier held nothing any more.
    for each, whole in ((mine, upto[0]), (its, upto[1])):
        assert not each.shares[rows:whole].any()


@settings(max_examples=100, deadline=None)
@given(markets(), said, choices, st.booleans())
def test_costs_only_lower_what_is_earned(market: Any, asked: Any, chosen: Any, shorts: bool) -> None:
    """Of trade for trade: what an account earns may rise with costs, where they made a losing position smaller."""
    asked = dict(list(asked.items())[:1])  # one signal
    dear = chosen | {"shorts": shorts, "sizing": "fixed", "weight": 0.3}
    mine, free = run(market, asked, dear), run(market, asked, dear | FREE)
    for one, other in zip(mine.trades, free.trades, strict=True):
        assert one.gain <= other.gain + 1e-12
        assert one.pnl <= other.pnl + 1e-9
    if mine.trades and dear["cost_bps"] + dear["slippage_bps"] > 0:
        assert mine.equity[-1] < free.equity[-1]


@settings(max_examples=150, deadline=None)
@given(markets(), st.sampled_from(TICKERS), st.integers(0, 12), st.sampled_from(DIRECTED), choices)
def test_a_reversed_signal_never_gains_from_the_same_move(market: Any, ticker: str, day: int, action: str, chosen: Any) -> None:
    chosen = chosen | {"shorts": True, "sizing": "fixed", "weight": 0.3, "vanished": "last"}
    mine, other = (run(market, {(ticker, day): each}, chosen) for each in (action, REVERSED[action]))
    for one, its in zip(mine.trades, other.trades, strict=True):
        assert one.side != its.side
        assert one.pnl + its.pnl <= 1e-6  # what one gains the other loses, and both pay
        if not chosen["cost_bps"] and not chosen["slippage_bps"]:
            assert one.pnl + its.pnl == pytest.approx(0, abs=1e-6)


@settings(max_examples=100, deadline=None)
@given(st.lists(ratios, min_size=3, max_size=14), st.sampled_from(["fixed", "equal"]))
def test_buying_and_holding_without_costs_is_the_price_return(path: list[float], sizing: str) -> None:
    closes = [float(price) for price in 100 * np.cumprod(path)]
    account = run_account(
        make_prices({"A": closes}), make_signals([("A", 0, "BUY")]), rules(hold=99, weight=1.0, sizing=sizing, **FREE)
    )
    assert account.equity[1:] / 1_000_000 == pytest.approx(np.array(closes[1:]) / closes[1])
