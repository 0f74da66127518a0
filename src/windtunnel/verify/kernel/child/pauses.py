"""Programs that stop at an atomic access and go on after the others: on a GPU anything may run between two steps of a program.

The interpreter runs one program after the other, so that whoever takes a ticket has always done everything before it.
Runs only in sandboxed children.
"""

from __future__ import annotations

import inspect
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from triton.runtime import interpreter

from windtunnel.verify.kernel.child.together import MOST_TOGETHER, Apart

SHARE_OF_LAUNCHES = 0.5  # in which programs stop; in the others each runs at one go
SHARE_OF_ATOMICS = 0.4  # after which a program stops in such a launch
SPINS = 64  # atomic accesses in a row that give the same of one word: the program waits for another, and stops


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
    """Which programs of one launch have stopped.

    A program goes on by running anew, where accesses that it has made already are not made again but give what they gave.

    Attributes:
        resumed: the program that runs has stopped before, and does so again only to wait.
        in_vain: how many that went on have stopped again since one came to its end; where all of them have, nobody will, and the
            rest may spin.
    """

    dice: random.Random
    on: bool = False
    done: list[Any] = field(default_factory=list)
    again: int = 0  # how many of `done` this run has asked for
    fresh: bool = False  # whether the last access was made, not remembered
    resumed: bool = False
    spins: int = 0
    seen: object = None  # which word the last atomic access changed, and what it gave
    waiting: deque[Waiting] = field(default_factory=deque)
    in_vain: int = 0

    def access(self, make: Callable[[], Any]) -> Any:
        """Return what an access gives, which is made only once."""
        if not self.on:
            return make()
        self.fresh = self.again == len(self.done)
        if self.fresh:
            self.done.append(make())
        self.again += 1
        return self.done[self.again - 1]

    def may_stop(self, pointer: Any, result: Any) -> None:
        """Stop the program here after an atomic access, at random once, and where it waits for another."""
        if not self.on or not self.fresh:
            return
        if not self.resumed and self.dice.random() < SHARE_OF_ATOMICS:
            raise Paused
        seen = (pointer.data.tobytes(), result.data.tobytes()) if pointer.data.size == 1 else None
        self.spins = self.spins + 1 if seen is not None and seen == self.seen else 0
        self.seen = seen
        if self.spins >= SPINS and self.in_vain <= 2 * len(self.waiting):
            raise Paused

    def begin(self) -> None:
        """Begin with a program that has not run yet."""
        self.done, self.again, self.resumed, self.spins = [], 0, False, 0

    def resume(self, program: Waiting) -> None:
        """Begin anew with a program that has stopped: what it has done already is not done again."""
        self.done, self.again, self.resumed, self.spins = program.done, 0, True, 0


def made_once(holder: Any, access: Callable[..., Any], *, word: int | None = None) -> Callable[..., Any]:
    """Return an access of the interpreter's that is made once, where programs may stop and go on.

    word: which argument of an atomic access is the pointer.
    """

    def made(*given: Any, **named: Any) -> Any:
        if holder.numbers is not None:
            if word is not None:
                raise Apart(most=1)
            return access(*given, **named)
        result = holder.pauses.access(lambda: access(*given, **named))
        if word is not None:
            holder.pauses.may_stop(given[word], result)
        return result

    return made


class Grid:
    """What the interpreter calls in the kernel's place, once for a launch: programs together where they can, else one by one.

    holder: of the launch's log, grid and pauses.
    """

    def __init__(self, function: Any, holder: Any, builder: Any) -> None:
        self.function, self.holder, self.builder = function, holder, builder
        self.__name__, self.__globals__ = function.__name__, function.__globals__
        self.__annotations__, self.__signature__ = function.__annotations__, inspect.signature(function)

    def __call__(self, **arguments: Any) -> None:
        """Run all programs of a launch, those that stopped in another order until all have come to their end."""
        holder, pauses = self.holder, self.holder.pauses
        self.builder.grid_dim = holder.grid
        places = np.stack(np.unravel_index(np.arange(math.prod(holder.grid)), holder.grid), axis=1)
        # A kernel that needs its programs in their order is right here by luck alone, and on a GPU not even then.
        pauses.dice.shuffle(order := list(range(len(places))))
        left = [places[order]]
        while left:
            some = left.pop()
            most = holder.together.get(self.function, MOST_TOGETHER)
            if len(some) > most:
                left += [some[most:], some[:most]]
            elif len(some) > 1:
                left += self._together(some, arguments)
            else:
                holder.log.next_program()
                pauses.begin()
                self._run(tuple(some[0].tolist()), arguments)
        pauses.dice.shuffle(pauses.waiting)
        while pauses.waiting:
            program = pauses.waiting.popleft()
            pauses.resume(program)
            holder.log.resume(program.number)
            pauses.in_vain = 0 if self._run(program.place, arguments) else pauses.in_vain + 1

    def _together(self, places: np.ndarray, arguments: Any) -> list[np.ndarray]:
        """Run programs together; returns those that could not, of which nothing has happened then."""
        holder, whole = self.holder, self.holder.log
        whole.next_program(len(places))
        numbers = np.arange(whole.program - len(places), whole.program) + 1
        holder.log, holder.numbers, holder.undo = type(whole)(), numbers, []
        self.builder.grid_idx = [column[:1] if (column == column[0]).all() else column for column in places.T]
        try:
            self.function(**arguments)
        except (Apart, Exception) as why:  # an error is raised anew by the program that it comes from
            apart = why if isinstance(why, Apart) else Apart(most=1)
        else:
            whole.take(holder.log)
            return []
        finally:
            holder.log, holder.numbers = whole, None
        for where, before in reversed(holder.undo):
            interpreter._interpreter.store(where, before, np.ones(len(where), bool))
        if not apart.parts:
            holder.together[self.function] = apart.most
        return [places[part] for part in apart.parts] or [places]

    def _run(self, place: tuple[int, int, int], arguments: dict[str, Any]) -> bool:
        """Run one program; returns whether it came to its end."""
        pauses, log = self.holder.pauses, self.holder.log
        self.builder.grid_idx = place
        try:
            self.function(**arguments)
        except Paused:
            log.stop()
            pauses.waiting.append(Waiting(place, log.program, pauses.done))
            return False
        return True
