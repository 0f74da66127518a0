"""A curriculum over levels of prompts: it begins with the lowest, and goes on when the newest level's reward passes a bar."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from windtunnel.data import PromptFile, PromptLoader
from windtunnel.recipe import Curriculum, UserError

from .rollouts import Round


class Levels:
    """Which prompts are asked now. Its state is the same on every rank, and goes into checkpoints.

    Args:
        asked: bar, rounds and key.
        loader: is held to the levels reached.
        name: of the stage, for messages.

    Attributes:
        levels: of the prompts, ascending. place: of the newest one asked, among them.
        recent: mean rewards of its answers in the last rounds, at most `asked.rounds`.

    Raises:
        UserError: a prompt has no level.
    """

    def __init__(self, asked: Curriculum, loader: PromptLoader, name: str = "rl") -> None:
        self._asked, self._loader = asked, loader
        self._of = prompt_levels(loader.file, asked.key, name)
        # Levels need not be 1, 2, 3: those that the prompts have are climbed in their order.
        self.levels: list[float] = np.unique(self._of).tolist()
        self.place, self.recent, self._began = 0, list[float](), loader.position
        self._hold()

    @property
    def level(self) -> float:
        """Return the newest level that is asked."""
        return self.levels[self.place]

    def sums(self, found: Round) -> tuple[float, int]:
        """Return the sum of this rank's known rewards of the newest level's answers in a round, and how many they are."""
        # Older levels are asked too where levels are mixed, and would lift the mean over the bar.
        known = [
            sample.reward.total
            for sample in found.everything
            if sample.reward.total is not None and self._of[sample.prompt.number] == self.level
        ]
        return math.fsum(known), len(known)

    def note(self, ranks: Sequence[tuple[float, int]]) -> bool:
        """Take in a round, as `sums` of every rank; return whether another level is asked from now on."""
        total, count = math.fsum(one[0] for one in ranks), sum(one[1] for one in ranks)
        # A round that asked nothing of the newest level, or judged none of it, says nothing about it.
        if not count:
            return False
        self.recent = [*self.recent, total / count][-self._asked.rounds :]
        passed = len(self.recent) == self._asked.rounds and math.fsum(self.recent) / len(self.recent) >= self._asked.bar
        if not passed or self.place + 1 == len(self.levels):
            return False
        # Rewards of the level before say nothing about this one, so the bar is looked at anew; prompts too begin from here.
        self.place, self.recent, self._began = self.place + 1, [], self._loader.position
        self._hold()
        return True

    def state(self) -> dict[str, Any]:
        """Return JSON values from which `load` goes on."""
        return {"level": self.level, "recent": self.recent, "began": self._began}

    def load(self, state: dict[str, Any] | None) -> None:
        """Go on from a state; None: begin again, where the loader is.

        Raises:
            UserError: the prompts have no such level any more.
        """
        if state is None:
            self.place, self.recent, self._began = 0, [], self._loader.position
        # The level itself is kept, not its place: with prompts added since, the same place may be another level.
        elif state["level"] not in self.levels:
            have = ", ".join(f"{level:g}" for level in self.levels)
            raise UserError(
                f"the checkpoint's curriculum was at level {state['level']:g}, the prompts have {have}",
                "go on with the prompts of that run, or begin a new one",
            )
        else:
            self.place = self.levels.index(state["level"])
            self.recent, self._began = list(state["recent"]), int(state["began"])
        self._hold()

    def _hold(self) -> None:
        asked = self._of <= self.level if self._asked.mixed else self._of == self.level
        self._loader.hold_to(np.flatnonzero(asked), self._began)


def prompt_levels(file: PromptFile, key: str, name: str = "rl") -> Any:
    """Return each prompt's level, (prompts,) float64. Raises UserError where one has none."""
    found = [file.prompt(number).data.get(key) for number in range(file.samples)]
    # True and False are ints to Python, and no levels.
    bad = [number for number, level in enumerate(found) if not isinstance(level, int | float) or isinstance(level, bool)]
    if bad:
        kinds = ", ".join(f"{count:,} x {value}" for value, count in Counter(str(found[n])[:20] for n in bad).most_common(3))
        raise UserError(
            f"stages.{name}.curriculum: {len(bad):,} of {file.samples:,} prompts have no number as {key!r} ({kinds})",
            f"give each record a number, or name the key: stages.{name}.curriculum.key",
        )
    return np.array(found, dtype=np.float64)
