"""Tiny sizes for a task file that names none: its numbers made small by rule; the reference decides which suit.

A number above the cap becomes the cap, so that what divided keeps dividing (most caps are powers of two); equal ones stay equal,
and groups and heads fewer than what they divide. In the ragged size each number that was cut is longer by another odd step, a
batch by one, and what groups divide by a group; where the reference does not run so, by one, and where that is too large, shorter
by one. Where no cap suits, a batch is cut as what it equals, then all numbers are made smaller by one factor: some tasks need
such relations.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from windtunnel.recipe import UserError

if TYPE_CHECKING:
    from windtunnel.verify.kernel.task import Task


class NoNumbers(UserError):
    """A file has no number to make smaller."""


Sizes = dict[str, Mapping[str, int | float]]
CAPS = (16, 8, 6, 4, 32, 64)  # in the order of trying
PROPORTIONAL_CAPS = (16, 32, 8)
BATCH_CAP = 2
BATCH_WORDS = ("batch", "bs")
DIVIDER_WORDS = ("group", "head")  # of numbers that divide others
OUTER_WORDS = ("height", "width", "depth", "length", "seq")  # of what groups and heads do not divide
OUTER_LETTERS = ("H", "W")  # the same, and "D" beside them
MOST_ELEMENTS = 8_192  # of all outputs: the interpreter needs seconds for more; the ragged size may have twice as many
WISHED_WORK = 300_000  # multiplications of a reference's products and convolutions: of a mean of them too, whose output is small
WISHED_OF_WINDOWS = 2_048  # each takes a hundred steps and more; where no size is so small, MOST_ELEMENTS counts
WINDOW_WORDS = ("conv", "pool", "unfold", "interpolate", "upsample")


def guessed_sizes(task: Task, where: str) -> Iterator[tuple[int, list[Sizes]]]:
    """Yield (cap, sizes with 'tiny' and 'tiny_ragged' added), the first choice first; of one cap's, which share 'tiny', too.

    Raises NoNumbers where the file has no number to make smaller.
    """
    whole = _whole(task)
    if max(whole.values(), default=0) <= min(CAPS):
        raise NoNumbers(
            f"{where}: no module-level number above {min(CAPS)}, so no tiny size can be made for the interpreter",
            "add TASK = {'sizes': {'tiny': {...}}} or name the dimensions at module level (BATCH = 128)",
        )
    for cap in CAPS:
        tiny = {name: min(value, BATCH_CAP if is_batch(name) else cap) for name, value in whole.items()}
        yield cap, _choices(task, whole, _apart(whole, tiny))


def related_sizes(task: Task) -> Iterator[tuple[int, list[Sizes]]]:
    """Yield the tiny sizes to try where numbers hang together, with their cap.

    A batch that equals another number is cut as that; then all by one factor, so that the largest becomes the cap, and no other
    one less than 2.
    """
    whole = _whole(task)
    others = {value for name, value in whole.items() if not is_batch(name)}
    if any(is_batch(name) and value in others for name, value in whole.items()):
        for cap in CAPS[:4]:
            yield cap, _choices(task, whole, _apart(whole, {name: min(value, cap) for name, value in whole.items()}))
    for cap in PROPORTIONAL_CAPS:
        over = max(whole.values(), default=0) // cap
        if over > 1:
            smaller = {name: max(value // over, 2) if value >= over else value for name, value in whole.items()}
            yield cap, _choices(task, whole, smaller)


def _whole(task: Task) -> dict[str, int]:
    from windtunnel.literals import numbers

    return {name: value for name, value in numbers(task.source).items() if isinstance(value, int)}


def _choices(task: Task, whole: Mapping[str, int], tiny: Mapping[str, int]) -> list[Sizes]:
    """Return the sizes with these tiny ones, and each ragged one to try."""
    cut = {name: value for name, value in tiny.items() if value != whole[name]}
    places = {value: place for place, value in enumerate(sorted({whole[name] for name in cut}))}
    steps = {name: 1 + 2 * places[whole[name]] for name in cut}
    dividers = {name for name in tiny if _divides(name) and tiny[name] > 1}
    for name in cut:
        of = [tiny[divider] for divider in dividers if _is_divided(name, divider, whole)]
        steps[name] = 0 if name in dividers else 1 if is_batch(name) else math.lcm(*of) if of else steps[name]
    ragged = [{name: value + steps[name] for name, value in cut.items()}]
    ragged += [{name: max(value + step, 2) for name, value in cut.items()} for step in (1, -1)]
    return [{"full": {}, **task.sizes, "tiny": cut, "tiny_ragged": values} for values in ragged]


def _apart(whole: Mapping[str, int], tiny: dict[str, int]) -> dict[str, int]:
    """Return sizes with fewer groups and heads than what they divide, so that one is not taken for the other."""
    for name in (name for name in tiny if _divides(name) and whole[name] > 1):
        divided = [tiny[other] for other in tiny if whole[other] > whole[name] and _is_divided(other, name, whole)]
        most = min(divided, default=0)
        if most >= 4 and (tiny[name] >= most or any(value % tiny[name] for value in divided)):
            fits = [value for value in (8, 4, 2) if value < most and value <= whole[name]]
            tiny[name] = next((value for value in fits if not any(other % value for other in divided)), tiny[name])
    return tiny


def _is_divided(name: str, divider: str, whole: Mapping[str, int]) -> bool:
    """Return whether a number may be groups or heads times something: a batch of 128 is not, whatever it can be divided by."""
    letters = (*OUTER_LETTERS, "D") if all(letter in whole for letter in OUTER_LETTERS) else ()
    outer = is_batch(name) or name in letters or any(word in name.lower() for word in OUTER_WORDS)
    return name != divider and not outer and whole[name] % whole[divider] == 0


def wished_elements(source: str) -> int:
    """Return how many elements a reference's outputs should have at most, where its sizes can be made so small."""
    names = {getattr(node, "attr", getattr(node, "id", "")).lower() for node in ast.walk(ast.parse(source))}
    return WISHED_OF_WINDOWS if any(word in name for name in names for word in WINDOW_WORDS) else MOST_ELEMENTS


def is_batch(name: str) -> bool:
    """Return whether a number is a batch's, by its name."""
    return "batch" in name.lower() or name.lower() in BATCH_WORDS


def _divides(name: str) -> bool:
    return any(word in name.lower() for word in DIVIDER_WORDS) and "dim" not in name.lower() and "size" not in name.lower()
