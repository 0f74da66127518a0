"""Losses as text, with as many digits as tell them apart."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def apart(losses: Sequence[float]) -> list[str]:
    """With three decimals, or as many more as it takes to tell neighbours apart that differ. NaN differs from nothing."""
    for digits in range(3, 7):
        texts = [f"{loss:.{digits}f}" for loss in losses]
        if all(a != b or not abs(x - y) > 0 for (a, b), (x, y) in zip(pairwise(texts), pairwise(losses), strict=True)):
            break
    return texts
