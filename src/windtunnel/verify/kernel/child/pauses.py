"""Programs that stop at an atomic access and go on after the others: on a GPU anything may run between two steps of a program.

The interpreter runs one program after the other, so that whoever takes a ticket has always done everything before it.
Runs only in sandboxed children.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from windtunnel.verify.kernel.child.races import Log

SHARE_OF_LAUNCHES = 0.5  # in which programs stop; in the others each runs at one go
SHARE_OF_ATOMICS = 0.4  # after which a program stops in such a launch


class Paused(BaseException):
    """Ends a program that is run again later. Nothing of Triton's catches it."""


@dataclass
class Waiting:
    """A program that stopped. place: in the grid. number: in the log. done: what its accesses gave, in order."""

    place: tuple[int, int, int]
    number: int
    done: list[Any]


@dataclass
class Pauses:
    """Which programs of one launch have stopped. A program goes on by running anew, where accesses that it has made already are
    not made again but give what they gave."""

    dice: random.Random
    on: bool = False
    done: list[Any] = field(default_factory=list)
    again: int = 0  # how many of `done` this run has asked for
    resumed: bool = False
    waiting: list[Waiting] = field(default_factory=list)

    def access(self, make: Callable[[], Any]) -> Any:
        """What an access gives, which is made only once."""
        if not self.on:
            return make()
        if self.again == len(self.done):
            self.done.append(make())
        self.again += 1
        return self.done[self.again - 1]

    def may_stop(self, log: Log) -> None:
        """After an atomic access: stops the program here once, or not. One that holds a lock would let others wait for ever."""
        if self.on and not self.resumed and not log.locks and self.dice.random() < SHARE_OF_ATOMICS:
            raise Paused

    def begin(self) -> None:
        self.done, self.again, self.resumed = [], 0, False

    def resume(self, program: Waiting) -> None:
        self.done, self.again, self.resumed = program.done, 0, True


class Interrupted:
    """What the interpreter calls for each program of a grid in the kernel's place. holder: of the launch's log and its pauses."""

    def __init__(self, function: Any, holder: Any, builder: Any) -> None:
        self.function, self.holder, self.builder, self.left = function, holder, builder, 0
        self.__name__, self.__globals__ = function.__name__, function.__globals__
        self.__annotations__, self.__signature__ = function.__annotations__, inspect.signature(function)

    def __call__(self, **arguments: Any) -> None:
        pauses, log = self.holder.pauses, self.holder.log
        pauses.begin()
        self._run(arguments)
        if log.program == len(self.holder.order):
            pauses.dice.shuffle(pauses.waiting)
            while pauses.waiting:
                program = pauses.waiting.pop()
                pauses.resume(program)
                log.resume(program.number)
                self.builder.grid_idx = program.place
                self._run(arguments)

    def _run(self, arguments: dict[str, Any]) -> None:
        pauses, log = self.holder.pauses, self.holder.log
        try:
            self.function(**arguments)
        except Paused:
            pauses.waiting.append(Waiting(self.builder.grid_idx, log.program, pauses.done))
