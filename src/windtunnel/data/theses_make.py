"""Generate theses on simulated prices, with a relation that can be learned: indicators show a drift, the label is what follows.

Each stock is in one of three regimes for weeks at a time: it drifts up, sideways or down by `signal`
times its daily volatility. Returns are independent but for that, so a price is a geometric random walk whose recent
indicators tell its regime and nothing else about the future. The label of a day is the return over the next `horizon`
trading days in units of the volatility seen so far, cut at the quintiles of a normal distribution: even a reader who
knows the regime is often wrong, and without signal nobody does better than chance.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from windtunnel.recipe import ACTIONS, GeneratedTheses

from .documents import Array
from .theses import Record
from .theses_text import write_reasoning

WARM_UP = 80  # trading days simulated before the first thesis, so that every indicator has its whole window
MEAN_REGIME = 60  # trading days that a regime lasts on average
# Share of a price's distance from its start, as a logarithm, that is taken back each day: no price runs off to nothing.
PULL = 0.004
MARKET = 0.4  # share of a stock's variance that is the market's
# Fifths of a normal distribution.
_CUTS = np.array([-0.8416, -0.2533, 0.2533, 0.8416])
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Market:
    """Simulated stocks.

    Attributes:
        days: (days,) datetime64[D], Monday to Friday. tickers: their names.
        prices: (tickers, days) closing prices, in dollars and whole cents, as they are published.
        drawn: a generator of random numbers for what comes after the prices.
    """

    days: Array
    tickers: tuple[str, ...]
    prices: Array
    drawn: np.random.RandomState


def simulate(made: GeneratedTheses, seed: int) -> Market:
    """Return the market that a seed stands for; the same numbers with every version of NumPy."""
    drawn = np.random.RandomState(np.array([seed, 0x7E515], dtype=np.uint32))  # its streams are frozen
    first = np.datetime64(made.start, "D")
    # NumPy counts business days; one behind the last label, so that an order of the last day can be filled.
    begin = np.busday_offset(first, -WARM_UP, roll="forward")
    end = np.busday_offset(np.datetime64(made.end, "D"), made.horizon + 2, roll="backward")
    calendar = np.arange(begin, end)
    days = calendar[np.is_busday(calendar)]
    n, count = made.tickers, len(days)
    # Daily, 13 to 48 % a year, as large and small stocks have.
    volatility = np.exp(drawn.uniform(np.log(0.008), np.log(0.03), n))
    regimes = _regimes(drawn, n, count)
    noise = drawn.standard_normal((n + 1, count))
    # The market's share of the noise moves all stocks together; the drift is each stock's own.
    shared = np.sqrt(MARKET) * noise[0] + np.sqrt(1 - MARKET) * noise[1:]
    moved = volatility[:, None] * (made.signal * regimes + shared)
    for day in range(1, count):
        moved[:, day] += (1 - PULL) * moved[:, day - 1]
    start = np.exp(drawn.uniform(np.log(8), np.log(400), n))
    return Market(days, _names(n), np.round(start[:, None] * np.exp(moved), 2).clip(0.01), drawn)


def _regimes(drawn: np.random.RandomState, rows: int, count: int) -> Array:
    """Return (rows, count) of -1, 0 and 1, each lasting a geometric number of days, MEAN_REGIME on average."""
    change = drawn.random_sample((rows, count)) < 1 / MEAN_REGIME
    change[:, 0] = True
    kinds = drawn.randint(-1, 2, (rows, count))
    last = np.maximum.accumulate(np.where(change, np.arange(count), 0), axis=1)
    return np.take_along_axis(kinds, last, axis=1)


def _names(count: int) -> tuple[str, ...]:
    """Tickers of four letters that begin with Z, as few real ones do."""
    numbers = range(count)
    return tuple(f"Z{_LETTERS[i // 676]}{_LETTERS[i // 26 % 26]}{_LETTERS[i % 26]}" for i in numbers)


def _mean(values: Array, window: int) -> Array:
    """Return (tickers, days) mean over the last `window` days, the day itself included; NaN before there are so many."""
    sums = np.cumsum(values, axis=1)
    out = np.full(values.shape, np.nan)
    out[:, window - 1 :] = sums[:, window - 1 :]
    out[:, window:] -= sums[:, :-window]
    return out / window


def _change(prices: Array, window: int) -> Array:
    """Return (tickers, days) change of the price over the last `window` days, as a share."""
    out = np.full(prices.shape, np.nan)
    out[:, window:] = prices[:, window:] / prices[:, :-window] - 1
    return out


def indicators_of(prices: Array) -> dict[str, Array]:
    """Return the indicators of every day by name, each (tickers, days), from closing prices up to that day and no later.

    rsi_14 is Cutler's relative strength index (means, not smoothed averages); trend_60d is the mean daily return of 60
    days in units of its standard error.
    """
    daily = np.zeros(prices.shape)
    daily[:, 1:] = np.diff(np.log(prices), axis=1)
    deviation = {w: np.sqrt(np.maximum(_mean(daily**2, w) - _mean(daily, w) ** 2, 1e-12)) for w in (20, 60)}
    gains, losses = _mean(np.maximum(daily, 0), 14), _mean(np.maximum(-daily, 0), 14)
    return {
        "close": prices,
        "return_5d": _change(prices, 5),
        "return_20d": _change(prices, 20),
        "return_60d": _change(prices, 60),
        "volatility_20d": deviation[20] * np.sqrt(252),
        "rsi_14": 100 * gains / np.maximum(gains + losses, 1e-12),
        "sma_50_distance": prices / _mean(prices, 50) - 1,
        "trend_20d": _mean(daily, 20) / deviation[20] * np.sqrt(20),
        "trend_60d": _mean(daily, 60) / deviation[60] * np.sqrt(60),
    }


def labels_of(prices: Array, horizon: int, signal: float) -> Array:
    """Return (tickers, days) index into ACTIONS of the return ahead; days without one have the last known's and are not used.

    The return is divided by the volatility of the last 20 days over the same horizon, and by what the drift adds to it,
    so that the five actions are about equally frequent whatever the signal.
    """
    daily = np.zeros(prices.shape)
    daily[:, 1:] = np.diff(np.log(prices), axis=1)
    seen = np.sqrt(np.maximum(_mean(daily**2, 20), 1e-12))
    ahead = np.zeros(prices.shape)
    ahead[:, :-horizon] = np.log(prices[:, horizon:] / prices[:, :-horizon])
    spread = np.sqrt(horizon) * np.sqrt(1 + horizon * signal**2 * 2 / 3)
    ranks = np.searchsorted(_CUTS, ahead / (np.nan_to_num(seen, nan=1.0) * spread))
    return len(ACTIONS) - 1 - ranks


_FORMS = {
    "close": "{:.2f}", "rsi_14": "{:.1f}", "trend_20d": "{:+.1f}", "trend_60d": "{:+.1f}", "volatility_20d": "{:.1%}",
}  # fmt: skip


def generated_records(made: GeneratedTheses, market: Market) -> Iterator[tuple[str, Record]]:
    """Yield (source, record) of every thesis, by day; which stock has one on which day is drawn."""
    prices = market.prices
    indicators = indicators_of(prices)
    labels = labels_of(prices, made.horizon, made.signal)
    usable = np.flatnonzero((market.days >= np.datetime64(made.start)) & (market.days <= np.datetime64(made.end)))
    # Without repetition: a stock has one thesis a day at most.
    cells = np.sort(market.drawn.permutation(len(usable) * made.tickers)[: made.records])
    texts = np.random.RandomState(market.drawn.randint(0, 2**31))
    for number, cell in enumerate(cells.tolist(), 1):
        day, row = int(usable[cell // made.tickers]), cell % made.tickers
        values = {name: float(column[row, day]) for name, column in indicators.items()}
        date: datetime.date = market.days[day].item()
        ticker = market.tickers[row]
        reasoning, support = write_reasoning(ticker, values, texts)
        yield (
            f"generated#{number}",
            {
                "ticker": ticker,
                "as_of_date": date.isoformat(),
                "reasoning": reasoning,
                "support": support,
                "action": ACTIONS[int(labels[row, day])],
                "indicators": {name: _FORMS.get(name, "{:+.1%}").format(value) for name, value in values.items()},
            },
        )


def write_prices(market: Market, file: Path) -> None:
    """Write date, ticker and close, a row for each stock and day, by day, as Parquet."""
    import pyarrow
    from pyarrow import parquet

    n, count = market.prices.shape
    names = pyarrow.DictionaryArray.from_arrays(np.tile(np.arange(n, dtype=np.int32), count), list(market.tickers))
    columns = {
        "date": pyarrow.array(np.repeat(market.days, n), pyarrow.date32()),
        "ticker": names.cast(pyarrow.string()),
        "close": pyarrow.array(np.ascontiguousarray(market.prices.T).reshape(-1)),
    }
    parquet.write_table(pyarrow.table(columns), file, compression="zstd")
