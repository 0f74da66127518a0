"""The order of sequences: one seeded permutation an epoch, the same for any number of ranks."""

from __future__ import annotations

import numpy as np

from .documents import Array


class SequenceOrder:
    """Maps the global count of sequences consumed to the sequence that comes next.

    Epoch e visits all `count` sequences in a permutation given by (seed, e) alone. It is the sorting order
    of raw Philox output, which NumPy keeps the same over versions, so a run can be resumed under another one.
    """

    def __init__(self, count: int, seed: int) -> None:
        assert count > 0
        self.count = count
        self.seed = seed
        self._kept: dict[int, Array] = {}

    def permutation(self, epoch: int) -> Array:
        """(count,) the sequences of one epoch in the order they are visited."""
        if epoch not in self._kept:
            key = np.array([self.seed & (2**64 - 1), epoch], dtype=np.uint64)
            raw = np.random.Philox(key=key).random_raw(self.count)
            order = np.argsort(raw, kind="stable").astype(np.uint32 if self.count < 2**32 else np.uint64)
            # A batch can straddle two epochs; older ones are never needed again.
            self._kept = {e: p for e, p in self._kept.items() if e >= epoch - 1} | {epoch: order}
        return self._kept[epoch]

    def __call__(self, first: int, n: int) -> Array:
        """(n,) int64 sequences at global positions first .. first + n - 1."""
        parts = []
        while n > 0:
            epoch, start = divmod(first, self.count)
            part = self.permutation(epoch)[start : start + n].astype(np.int64)
            parts.append(part)
            first, n = first + len(part), n - len(part)
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
