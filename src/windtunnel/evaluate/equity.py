"""Figures of daily equity: return, Sharpe, drawdown, and their intervals by bootstrap over blocks of days."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .bootstrap import Array

YEAR = 252  # trading days
DRAWS, DRAW_SEED = 2000, 109  # fixed: the same account has the same intervals
DRAWN_AT_ONCE = 1 << 20  # days, of 8 bytes: decades drawn 2,000 times would take gigabytes
LEAST_BLOCKS = 8  # with fewer blocks all draws are nearly the same

Interval = tuple[float, float]


@dataclass(frozen=True)
class Figures:
    """Figures of daily equity.

    Attributes:
        total, yearly: return over the whole time, and as a rate for a year.
        volatility: of daily returns, for a year.
        sharpe: mean over deviation of daily returns times the root of 252; None where nothing moves. Cash earns nothing.
        drawdown: largest fall from a height so far, a share of it. peak, trough: its days; None where there is no fall.
    """

    total: float
    yearly: float
    volatility: float
    sharpe: float | None
    drawdown: float
    peak: str | None
    trough: str | None


def figures(days: Array, equity: Array) -> Figures:
    """Return the figures of daily equity, of which the first day is before anything was traded."""
    returns, total = daily_returns(equity), float(equity[-1] / equity[0]) - 1
    heights = np.maximum.accumulate(equity)
    falls = 1 - equity / heights
    trough = int(falls.argmax())
    peak = int(equity[: trough + 1].argmax())
    fell = falls[trough] > 0
    return Figures(
        total=total,
        yearly=_yearly(total, len(returns)),
        volatility=float(returns.std(ddof=1) * math.sqrt(YEAR)) if len(returns) > 1 else 0.0,
        sharpe=_sharpe(returns),
        drawdown=float(falls[trough]),
        peak=str(days[peak]) if fell else None,
        trough=str(days[trough]) if fell else None,
    )


def daily_returns(equity: Array) -> Array:
    """Return daily returns, (D - 1,); 0 once nothing is left."""
    before = equity[:-1]
    return np.where(before > 0, np.diff(equity) / np.where(before > 0, before, 1.0), 0.0)


def _yearly(total: float, days: int) -> float:
    return (1 + total) ** (YEAR / days) - 1 if total > -1 and days else -1.0


def _sharpe(returns: Array) -> float | None:
    """Return mean over deviation of daily returns times the root of the days in a year (Sharpe 1994); None if nothing moves."""
    deviation = float(returns.std(ddof=1)) if len(returns) > 1 else 0.0
    return float(returns.mean()) / deviation * math.sqrt(YEAR) if deviation > 1e-12 else None


def block_length(days: int, hold: int) -> int:
    """Return the length of the blocks that a bootstrap draws: what is held on one day is held on the next `hold` too."""
    # The cube root of the days is the usual length where nothing is known of them (Hall et al. 1995).
    return max(2 * hold, math.ceil(days ** (1 / 3)))


def resampled_days(days: int, block: int) -> Iterator[Array]:
    """Yield (draws, days) indices of days: blocks from anywhere, around the end (circular block bootstrap, Politis 1992)."""
    random = np.random.default_rng(DRAW_SEED)
    blocks, done = math.ceil(days / block), 0
    while done < DRAWS:
        draws = min(DRAWS - done, max(1, DRAWN_AT_ONCE // days))
        starts = random.integers(days, size=(draws, blocks, 1))
        yield ((starts + np.arange(block)) % days).reshape(draws, -1)[:, :days]
        done += draws


def intervals(mine: Array, other: Array, block: int) -> tuple[Interval | None, Interval | None, Interval | None]:
    """Return 95 % intervals of Sharpe, of the yearly return, and of what it has over the benchmark's on the same days."""
    days = len(mine)
    if days < LEAST_BLOCKS * block or mine.std() < 1e-12:
        return None, None, None
    found: list[Array] = []
    for chosen in resampled_days(days, block):
        # The same days of both, so that what moves all prices drops out of their difference.
        drawn, beside = mine[chosen], other[chosen]
        with np.errstate(divide="ignore", invalid="ignore"):
            sharpe = drawn.mean(axis=1) / drawn.std(axis=1, ddof=1) * math.sqrt(YEAR)
            yearly, its = (np.exp(np.log1p(each).sum(axis=1) * YEAR / days) - 1 for each in (drawn, beside))
        found.append(np.stack([sharpe, yearly, yearly - its]))
    sharpe, yearly, gain = (middle(values) for values in np.concatenate(found, axis=1))
    return sharpe, yearly, gain


def middle(values: Array) -> Interval | None:
    """Return what 95 % of the values lie between; None where half of them are no numbers."""
    values = values[np.isfinite(values)]
    if len(values) < DRAWS // 2:
        return None
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)
