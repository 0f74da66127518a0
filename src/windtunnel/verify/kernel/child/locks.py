"""Which words of memory the programs of one launch hold as locks. Runs only in sandboxed children."""

from __future__ import annotations

import numpy as np


class Locks:
    """A program holds a word that its compare-and-swap or exchange changed, until it writes to it again. A word that another
    changes meanwhile keeps nobody out, and never did."""

    def __init__(self) -> None:
        self.owner: dict[int, int] = {}  # program by word
        self.held: dict[int, list[int]] = {}  # words by program, in the order they were taken
        self.broken: set[int] = set()

    def guard(self, program: int) -> int:
        """The word that a program has held for longest, 0 for none."""
        words = self.held.get(program)
        return words[0] if words else 0

    def swapped(self, changed: np.ndarray, program: int) -> None:
        """changed: addresses of words that an exchange gave another value."""
        for word in changed.tolist():
            if word not in self.owner:
                self.owner[word] = program
                self.held.setdefault(program, []).append(word)
            elif self.owner[word] == program:
                self._release(word, program)
            else:
                self.broken.add(word)

    def written(self, where: np.ndarray, program: int) -> None:
        """A program stored to these addresses, or changed them by another atomic access."""
        for word in list(self.held.get(program, ())):
            if (where == word).any():
                self._release(word, program)

    def kept_apart(self, least: np.ndarray, most: np.ndarray) -> np.ndarray:
        """Where all accesses were guarded by one word that kept the others out. least, most: guards of the accesses."""
        return (least == most) & (least != 0) & ~np.isin(least, list(self.broken))

    def _release(self, word: int, program: int) -> None:
        del self.owner[word]
        self.held[program].remove(word)
