"""A stand-in for CUDA graphs, where there is no GPU."""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Again:
    """In the place of a CUDA graph: it knows no other tensors than those it was recorded with."""

    work: Callable[[], None]

    def replay(self) -> None:
        self.work()


@dataclass
class Recorder:
    """In the place of what records CUDA graphs.

    made: what was recorded. launched: how often work was launched beside it. leaves: numbers of launches that leave something.
    """

    made: list[Again] = field(default_factory=list)
    launched: int = 0
    leaves: tuple[int, ...] = ()

    def __call__(self, work: Callable[[], None]) -> Again:
        self.made.append(Again(work))
        return self.made[-1]

    def launch(self, work: Callable[[], None]) -> bool:
        self.launched += 1
        work()
        return self.launched in self.leaves
