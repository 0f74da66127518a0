"""Several prepared sources visited in turn by weight, in an order that any position can be entered at."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .documents import GOLDEN, Array, mix
from .tokens import Draw, SequenceOrder, Short, TokenFile, Tokens

_MODULUS = 1 << 64  # arithmetic of uint64 is taken modulo this by itself


@dataclass(frozen=True)
class MixtureFile(TokenFile):
    """Token files of one kind and vocabulary as one: its sequences are theirs, one part after the other.

    Attributes:
        parts: the sources. weights: of the sequences trained on, relative to one another. names: for reports.
    """

    parts: tuple[TokenFile, ...] = ()
    weights: tuple[float, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def packed(self) -> bool:
        """Return whether rows hold several samples: all parts are alike in it."""
        return self.parts[0].packed

    @property
    def bytes(self) -> int:
        """Return the bytes of all parts on the disk."""
        return sum(part.bytes for part in self.parts)

    @cached_property
    def array(self) -> Tokens:
        """Return (count,) ids of all parts one after the other, in memory; for looking at, not for training."""
        return np.concatenate([part.array for part in self.parts])

    def sequences(self, sequence: int) -> int:
        """Sequences of all parts; an epoch of the mixture is as many, whichever parts they come from."""
        return sum(part.sequences(sequence) for part in self.parts)

    def targets(self, limit: int | None = None) -> int:
        """Targets of all parts, or the first `limit`."""
        total = sum(part.targets() for part in self.parts)
        return total if limit is None else min(total, max(1, limit))

    def order(self, sequence: int, seed: int) -> MixtureOrder:
        """Return the order in which training visits the sequences of all parts."""
        return MixtureOrder([part.sequences(sequence) for part in self.parts], self.weights, seed)

    def epochs_of_sources(self, sequence: int, seed: int, position: int) -> dict[str, float]:
        """Epochs of each source that the first `position` sequences of training make."""
        order = self.order(sequence, seed)
        return {name: order.visits(k, position) / order.counts[k] for k, name in enumerate(self.names)}

    def used(self, sequence: int, limit: int | None) -> tuple[Array, int]:
        """Return (rows,) sequences to validate on, whole ones, of each part in the share of its weight; and their targets."""
        rows, targets = [], 0
        share = [weight / sum(self.weights) for weight in self.weights]
        for part, start, weight in zip(self.parts, self._starts(sequence), share, strict=True):
            own, count = part.used(sequence, None if limit is None else max(1, round(limit * weight)))
            if not part.packed:
                # The last sequence is used whole, so that `read` need not know where a part is cut.
                count = min(part.targets(), len(own) * sequence)
            rows.append(own + start)
            targets += count
        return np.concatenate(rows), targets

    def width(self, sequence: int) -> int:
        """Return the numbers in a row of a batch; see `TokenFile`."""
        return self.parts[0].width(sequence)

    def ids_of(self, out: Tokens, sequence: int) -> Tokens:
        """Return the part of rows that holds ids."""
        return self.parts[0].ids_of(out, sequence)

    def _starts(self, sequence: int) -> list[int]:
        return [0, *itertools.accumulate(part.sequences(sequence) for part in self.parts)][:-1]

    def _fill(self, rows: Tokens, sequence: int, out: Tokens, targets: int | None, draw: Draw | None) -> Short:
        starts = np.array(self._starts(sequence))
        which = np.searchsorted(starts, np.maximum(rows, 0), side="right") - 1
        short: Short = {}
        for i, (row, part) in enumerate(zip(rows.tolist(), which.tolist(), strict=True)):
            own = np.array([row - starts[part] if row >= 0 else -1])
            lacks = self.parts[part].read(own, sequence, out[i : i + 1])
            if lacks:
                short[i] = lacks[0]  # a part knows this row as its first
        return short


class MixtureOrder:
    """Maps the global count of sequences consumed to the sequence that comes next, source by source.

    The source of position p is told by where (p + 1) G + s, taken modulo 2**64, falls among the cumulative weights
    (G is the golden ratio's multiplier, s comes of the seed). Multiples of the golden ratio are spread as evenly as
    can be, so after n sequences each source has had its share of them up to a few; and how many a source has had can
    be computed for any n, so that a run resumes from the position alone. Within a source the order is its own
    `SequenceOrder`.
    """

    def __init__(self, counts: Sequence[int], weights: Sequence[float], seed: int) -> None:
        assert len(counts) == len(weights) > 0
        assert min(counts) > 0
        self.counts = list(counts)
        self.seed = seed
        self._shift = int(mix(np.array([seed & (_MODULUS - 1)], dtype=np.uint64) + GOLDEN)[0])
        total = sum(weights)
        cumulative = [round(_MODULUS * (c / total)) for c in itertools.accumulate(weights)]
        self._bounds = [0, *cumulative[:-1], _MODULUS]
        self._starts = [0, *itertools.accumulate(counts)][:-1]
        # Another seed each, or sources of one length would be visited in one order.
        self._orders = [SequenceOrder(n, seed + k) for k, n in enumerate(counts)]

    def visits(self, source: int, n: int) -> int:
        """Return how many of the first n positions belong to a source."""
        return self._below(self._bounds[source + 1], n) - self._below(self._bounds[source], n)

    def _below(self, bound: int, n: int) -> int:
        """Return how many of the first n points lie below a bound: [x mod M < a] = floor(x / M) - floor((x - a) / M)."""
        multiplier = int(GOLDEN)
        first = multiplier + self._shift
        # The second sum is taken one modulus higher, so that no term is negative, which adds 1 to each of its n terms.
        return _floor_sum(n, _MODULUS, multiplier, first) - (_floor_sum(n, _MODULUS, multiplier, first - bound + _MODULUS) - n)

    def __call__(self, first: int, n: int) -> Array:
        """Return (n,) int64 sequences at global positions first .. first + n - 1."""
        with np.errstate(over="ignore"):
            points = (np.arange(first, first + n, dtype=np.uint64) + np.uint64(1)) * GOLDEN + np.uint64(self._shift)
        inner = np.array(self._bounds[1:-1], dtype=np.uint64)
        sources = np.searchsorted(inner, points, side="right")
        rows = np.empty(n, dtype=np.int64)
        for k in np.unique(sources).tolist():
            here = sources == k
            rows[here] = self._orders[k](self.visits(k, first), int(here.sum())) + self._starts[k]
        return rows


def _floor_sum(n: int, m: int, a: int, b: int) -> int:
    """Sum over i < n of floor((a i + b) / m), for a, b >= 0, in logarithmic time (Euclid's algorithm on lattice points)."""
    total = 0
    while True:
        total += (n - 1) * n // 2 * (a // m) + n * (b // m)
        a, b = a % m, b % m
        top = a * n + b
        if top < m:
            return total
        n, b, m, a = top // m, top % m, a, m
