"""Numbers as people read them, and curves as one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"
# Decimal, as parameters and tokens are counted.
_SCALES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


def sparkline(values: Sequence[float], width: int) -> str:
    """Return a curve in at most `width` characters, each the mean of its share of the values; '×' where none is finite."""
    count = min(width, len(values))
    # In units of the largest, so that neither a sum nor a difference can overflow.
    unit = max((abs(value) for value in values if math.isfinite(value)), default=0.0) or 1.0
    scaled = [value / unit for value in values]
    groups = [scaled[i * len(scaled) // count : (i + 1) * len(scaled) // count] for i in range(count)]
    means = [_mean(group) for group in groups]
    finite = [m for m in means if m is not None]
    if not finite:
        return "×" * count
    low, span = min(finite), (max(finite) - min(finite)) or 1.0
    return "".join("×" if m is None else _BARS[round((m - low) / span * (len(_BARS) - 1))] for m in means)


def _mean(values: Sequence[float]) -> float | None:
    finite = [v for v in values if math.isfinite(v)]
    return sum(finite) / len(finite) if finite else None


def duration(seconds: float | None) -> str:
    """3725 -> '1:02:05', 65 -> '1:05', 200000 -> '2 d 7:33:20'."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    whole = max(0, round(seconds))
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3600)
    clock = f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours or days else f"{rest // 60}:{rest % 60:02d}"
    return f"{days} d {clock}" if days else clock


def count(value: float | None) -> str:
    """1234567 -> '1.23 M'."""
    if value is None or not math.isfinite(value):
        return "-"
    for scale, letter in _SCALES:
        if float(f"{abs(value):.3g}") >= scale:  # what three digits round to 1,000 k is 1 M
            return f"{value / scale:.3g} {letter}"
    return f"{value:.3g}"


def chain(values: Sequence[float], most: int = 8) -> str:
    """Return '3.412 → 3.201 → 2.977'; of more than `most` values those in the middle are left out."""
    texts = [f"{value:.3f}" for value in values]
    if len(texts) <= most:
        return " → ".join(texts)
    ends = most // 2
    return f"{' → '.join(texts[:ends])} … {' → '.join(texts[-ends:])}"


def number(value: float | None, digits: int = 4) -> str:
    """Return a plain number with that many decimals; '-' when there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def share(value: float | None) -> str:
    """0.512 -> '51.2 %'."""
    return "-" if value is None else f"{100 * value:.1f} %"


def dollars(value: float | None) -> str:
    """Return '$1,234.50'; cents are enough."""
    return "-" if value is None else f"${value:,.2f}"
