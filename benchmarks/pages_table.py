"""Markdown tables and numbers for pages.py."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, columns as wide as they need be."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def power(value: float) -> str:
    """1.70 · 10^16."""
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa} · 10^{int(exponent)}"


def percent(share: float) -> str:
    """Of a share, without its sign."""
    return f"{100 * share:.1f}"
