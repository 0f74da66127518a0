"""Counter-based random numbers and hashes of arrays (splitmix64): a draw is a function of its number alone."""

from __future__ import annotations

import numpy as np

from .documents import Array

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(x: Array) -> Array:
    """uint64 -> uint64 of the same shape, one to one, every bit of the result depending on every bit of x."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))
