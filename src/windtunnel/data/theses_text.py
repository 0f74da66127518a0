"""Words for generated theses: reasoning that says what the indicators show, in sentences that differ."""

from __future__ import annotations

import numpy as np

_TREND = {
    "up": (
        "{ticker} has trended higher: {r60} over sixty days and {r20} over the last twenty.",
        "Buyers have been in control of {ticker}, which moved {r20} in a month and {r60} in a quarter.",
        "The quarter brought {ticker} {r60}, and the most recent month {r20}; the slope is positive.",
        "Over sixty sessions {ticker} returned {r60}, a rise of {t60} standard errors above nothing.",
        "With {r20} in twenty sessions, {ticker} continues a climb that reads {t60} on the sixty-day trend.",
    ),
    "flat": (
        "{ticker} has gone sideways: {r60} over sixty days and {r20} over the last twenty.",
        "Neither side prevails in {ticker}, which moved {r20} in a month and {r60} in a quarter.",
        "A trend of {t60} over sixty sessions is too weak to tell {ticker} from a coin.",
        "The quarter brought {ticker} {r60} and the month {r20}, within what chance alone would do.",
        "{ticker} keeps to its range, {r20} in twenty sessions and {r60} in sixty.",
    ),
    "down": (
        "{ticker} has trended lower: {r60} over sixty days and {r20} over the last twenty.",
        "Sellers have been in control of {ticker}, which moved {r20} in a month and {r60} in a quarter.",
        "The quarter brought {ticker} {r60}, and the most recent month {r20}; the slope is negative.",
        "Over sixty sessions {ticker} returned {r60}, a decline of {t60} standard errors.",
        "With {r20} in twenty sessions, {ticker} continues a slide that reads {t60} on the sixty-day trend.",
    ),
}
_STRENGTH = (
    "The relative strength index stands at {rsi}.",
    "RSI over fourteen days is {rsi}, {zone}.",
    "At {rsi}, relative strength is {zone}.",
    "Fourteen-day relative strength of {rsi} counts as {zone}.",
)
_LEVEL = (
    "The price of {close} is {sma} from its fifty-day average.",
    "It closed at {close}, {sma} away from the mean of fifty days.",
    "Against the fifty-day average the close of {close} stands {sma}.",
    "A close of {close} puts it {sma} from the fifty-day mean.",
)
_RISK = (
    "Annual volatility runs at {vol}, so positions should be sized to that.",
    "At {vol} a year, its volatility is {calm}.",
    "Swings of {vol} a year make this a {calm} name.",
    "Volatility of {vol} leaves room for a move against the position.",
)
_WEEK = (
    "The last week alone moved it {r5}.",
    "Five sessions added {r5}.",
    "Short-term, {r5} in five sessions {agree} the larger picture.",
)
_SUPPORT = (
    "Trend {t20} over 20 days and {t60} over 60 days; RSI {rsi}.",
    "20-day return {r20}, 60-day return {r60}, distance from the 50-day average {sma}.",
    "Momentum of {r20} in a month with volatility of {vol}; trend reading {t60}.",
    "Sixty-day trend {t60}, twenty-day trend {t20}, close {close}.",
)
SIDEWAYS = 1.0  # standard errors of the mean return below which a trend is called none


def write_reasoning(ticker: str, values: dict[str, float], drawn: np.random.RandomState) -> tuple[str, str]:
    """Return the reasoning and the support of a thesis; both say only what the indicators show."""
    trend, month = values["trend_60d"], values["trend_20d"]
    kind = "up" if trend > SIDEWAYS else "down" if trend < -SIDEWAYS else "flat"
    rsi = values["rsi_14"]
    words = {
        "ticker": ticker,
        "r5": f"{values['return_5d']:+.1%}",
        "r20": f"{values['return_20d']:+.1%}",
        "r60": f"{values['return_60d']:+.1%}",
        "t20": f"{month:+.1f}",
        "t60": f"{trend:+.1f}",
        "rsi": f"{rsi:.0f}",
        "zone": "overbought" if rsi > 70 else "oversold" if rsi < 30 else "neutral",
        "close": f"{values['close']:.2f}",
        "sma": f"{values['sma_50_distance']:+.1%}",
        "vol": f"{values['volatility_20d']:.0%}",
        "calm": "quiet" if values["volatility_20d"] < 0.25 else "restless",
        "agree": "confirms" if values["return_5d"] * trend > 0 else "contradicts",
    }
    pick = drawn.randint(0, 60, 7)  # 60: a multiple of how many sentences each list has
    middle = [_STRENGTH[pick[1] % 4], _LEVEL[pick[2] % 4], _RISK[pick[3] % 4], _WEEK[pick[4] % 3]]
    turn = int(pick[5]) % 4
    said = [_TREND[kind][pick[0] % 5], *middle[turn:], *middle[: max(0, turn - 1)]]
    return " ".join(said).format(**words), _SUPPORT[pick[6] % 4].format(**words)
