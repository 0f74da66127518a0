"""Generated kernel tasks: combinations of operators at three levels, each drawn in other sizes, orders and numbers.

Level 1 has one operator, level 2 two or three fused ones, level 3 longer chains and small blocks (convolution, batchnorm and
activation; a product, a row's norm and what follows; a gated product). Which side of the split a task is on depends on its
combination of operators alone, so that what is held out are combinations that were never trained on.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from windtunnel.recipe import KernelTasks

from .kernels_operators import BINARY, FLATTEN, NEVER, NORMS, NUMBERS, ROWS, UNARY
from .kernels_write import Description, Step, Written, write_task

LEVELS = (1, 2, 3)
_MOST_DRAWS = 50  # times that a task is drawn again at most where one like it was drawn before
_ACTS = tuple(UNARY)
_CONVOLUTIONS = ("conv2d", "pointconv")
_CALLED = {"add": ("bias", "residual", "number"), "mul": ("scale", "gate", "number")}
_SECONDS = {"residual": "y", "gate": "z"}


@dataclass(frozen=True)
class Combination:
    """Operators that are fused: cores in order, pointwise ones in any."""

    cores: tuple[str, ...]
    pointwise: tuple[str, ...]
    gate: bool = False

    @property
    def name(self) -> str:
        """Return the operators sorted, as `Description.operators`."""
        return "+".join(sorted([*self.cores, *self.pointwise, *(("matmul", "mul") if self.gate else ())]))


@dataclass(frozen=True)
class KernelTask:
    """A task with its texts.

    Attributes:
        combination: of its operators. key: decides the split, the same for the same combination whatever is drawn.
    """

    name: str
    level: int
    combination: str
    key: int
    written: Written

    @property
    def record(self) -> dict[str, Any]:
        """Return what a prompt's record holds: `task` for rewards of kind kernel, and what curricula and people want to know."""
        task = {"name": self.name, "source": self.written.source}
        return {"task": task, "level": self.level, "operators": self.combination.split("+")}


@functools.cache
def combinations(level: int) -> tuple[Combination, ...]:
    """Return every combination of a level, in a fixed order."""
    listed = (one for one in _LISTED[level]() if not any(set(one.pointwise) & set(NEVER.get(core, ())) for core in one.cores))
    return tuple({one.name: one for one in listed}.values())


def _level_1() -> Iterator[Combination]:
    yield from (Combination((), (name,)) for name in (*_ACTS, *BINARY))
    yield from (Combination((name,), ()) for name in (*ROWS, "matmul", *_CONVOLUTIONS))


def _level_2() -> Iterator[Combination]:
    every = (*_ACTS, *BINARY)
    yield from (Combination((), pair) for pair in itertools.combinations(every, 2))
    yield from (Combination((), ("add", "mul", act)) for act in _ACTS)
    yield from (Combination((), (binary, *pair)) for binary in BINARY for pair in itertools.combinations(_ACTS, 2))
    cores = (*ROWS, "matmul", *_CONVOLUTIONS)
    yield from (Combination((core,), (name,)) for core in cores for name in every)
    yield from (Combination((core,), (binary, act)) for core in cores for binary in BINARY for act in _ACTS)
    yield from (Combination((core,), ("add", "mul")) for core in cores)


def _level_3() -> Iterator[Combination]:
    yield from (Combination((), ("add", "mul", *pair)) for pair in itertools.combinations(_ACTS, 2))
    yield from (Combination((core,), ("add", "mul", act)) for core in (*NORMS, "matmul", *_CONVOLUTIONS) for act in _ACTS)
    yield from (Combination(("matmul", norm), (act,)) for norm in NORMS for act in _ACTS)
    yield from (Combination(("matmul", norm), (binary, act)) for norm in NORMS for binary in BINARY for act in _ACTS)
    yield from (Combination((one, "batchnorm"), (act,)) for one in _CONVOLUTIONS for act in _ACTS)
    yield from (Combination((one, "batchnorm"), (binary, act)) for one in _CONVOLUTIONS for binary in BINARY for act in _ACTS)
    yield from (Combination(("matmul",), (act,), gate=True) for act in _ACTS)
    yield from (Combination(("matmul",), ("add", act), gate=True) for act in _ACTS)


ASKED = "Write a Triton kernel that computes what this PyTorch module does, as a module `ModelNew` with the same parameters."
ASKED_PLAN = "Say your plan in a sentence or two, then give the code in one Python block."
ASKED_CODE = "Give the code in one Python block."


def task_prompt(reference: str, *, plan: bool) -> str:
    """Return the prompt for a module."""
    return f"{ASKED} {ASKED_PLAN if plan else ASKED_CODE}\n\n{fenced(reference)}"


def task_answer(plan: str, code: str) -> str:
    """Return an answer as it is to be learned: the plan, if there is one, and the code in a block."""
    return f"{plan}\n\n{fenced(code)}" if plan else fenced(code)


def fenced(code: str) -> str:
    """Return code as a block of Markdown."""
    return f"```python\n{code.strip()}\n```"


_LISTED = {1: _level_1, 2: _level_2, 3: _level_3}


@functools.cache
def split_keys() -> dict[str, int]:
    """Return a key of 64 bits by combination: those of a level lie evenly, so that every share holds out as much of each."""
    found: dict[str, int] = {}
    for level in LEVELS:
        names = [one.name for one in combinations(level) if one.name not in found]
        # An order by hash, so that what is held out has nothing to do with what the operators do.
        names.sort(key=lambda name: xxhash.xxh3_64_intdigest(name.encode()))
        found |= {name: (2 * place + 1) * 2**63 // len(names) for place, name in enumerate(names)}
    return found


def draw_tasks(asked: KernelTasks, seed: int) -> Iterator[KernelTask]:
    """Yield the tasks, different from each other, levels in turn; the same ones for the same seed, fewer where there are none."""
    keys, seen = split_keys(), set[str]()
    orders = {level: _spread(combinations(level), keys) for level in asked.levels}
    for number in range(asked.tasks):
        level = asked.levels[number % len(asked.levels)]
        order = orders[level]
        combination = order[number // len(asked.levels) % len(order)]
        for attempt in range(_MOST_DRAWS):
            # Of the task's own number: asking for more tasks changes none of the first ones.
            key = np.array([seed & (2**64 - 1), number * _MOST_DRAWS + attempt], dtype=np.uint64)
            task = describe(combination, level, np.random.Generator(np.random.Philox(key=key)))
            written = write_task(task)
            if written.reference not in seen:
                seen.add(written.reference)
                yield KernelTask(f"level{level}-{task.name}-{number}", level, combination.name, keys[combination.name], written)
                break


def _spread(every: Sequence[Combination], keys: dict[str, int]) -> list[Combination]:
    """Return combinations in an order of which every beginning has about as large a share held out as the whole.

    The first is held out if any is.
    """
    order = sorted(every, key=lambda one: keys[one.name])
    # Steps of the golden ratio spread any beginning evenly; a step prime to the length visits each once.
    step = next(step for step in range(round(len(order) * 0.618), 2 * len(order)) if np.gcd(step, len(order)) == 1)
    return [order[place * step % len(order)] for place in range(len(order))]


class _Draw:
    """Choices of one task."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def one(self, of: Sequence[Any]) -> Any:
        return of[int(self._rng.integers(len(of)))]

    def shuffled(self, of: Sequence[Any]) -> list[Any]:
        return [of[int(i)] for i in self._rng.permutation(len(of))]


def describe(combination: Combination, level: int, rng: np.random.Generator) -> Description:
    """Return one task of a combination: order, sizes, numbers and what add and mul are with, drawn."""
    draw = _Draw(rng)
    kind = Description("", level, combination.cores, (), (), (), {}, 0).kind
    reduces = any(core in ROWS and ROWS[core].reduces for core in combination.cores)
    first = next((FLATTEN[core] for core in combination.cores if core in FLATTEN), ())
    names = sorted(draw.shuffled(combination.pointwise), key=lambda name: name not in first)
    if combination.gate:
        names.sort(key=lambda name: name == "add")  # the gate's activation first
    least = sum(name in first for name in names)
    early = draw.one(range(least, len(names) + 1)) if kind == "row" else 0
    before = [_step(name, draw, free=True) for name in names[:early]]
    after = [_step(name, draw, free=not reduces) for name in names[early:]]
    dims, sizes = _sizes(kind, bool(combination.cores and combination.cores[0] == "matmul"), draw)
    block = draw.one((512, 1024, 2048)) if kind in ("elementwise", "conv") else draw.one((32, 64))
    name = "-".join([*names[:early], *combination.cores, *names[early:]])
    return Description(name, level, combination.cores, tuple(before), tuple(after), dims, sizes, block, combination.gate)


def _step(name: str, draw: _Draw, *, free: bool) -> Step:
    """Return a step. free: it may take parameters and second inputs."""
    if name in UNARY:
        one = UNARY[name]
        number = draw.one(one.numbers) if one.numbers else 0.0
        torch, triton, words = (text.format(c=number) for text in (one.torch, one.triton, one.words))
        return Step(name, torch, triton, words)
    sign = BINARY[name]
    what = draw.one(_CALLED[name]) if free else "number"
    if what == "number":
        number = draw.one(NUMBERS[name])
        word = "plus" if name == "add" else "times"
        return Step(name, f"x {sign} {number}", f"x {sign} {number}", f"{word} {number}")
    if what in _SECONDS:
        tensor = _SECONDS[what]
        return Step(name, f"x {sign} {tensor}", f"x {sign} {tensor}", f"{'plus' if name == 'add' else 'times'} {tensor}", tensor)
    return Step(name, f"x {sign} self.{what}", f"x {sign} {what}", f"{what} by column", what, column=True)


def _sizes(kind: str, product: bool, draw: _Draw) -> tuple[tuple[str, ...], dict[str, tuple[int, int, int, int]]]:
    """Return the names of x's dimensions, and every number's values when tiny, tiny and ragged, full, full and ragged."""
    if kind == "conv":
        batch, height = draw.one((8, 16, 32)), draw.one((14, 28, 32, 56))
        channels, out = draw.one((16, 32, 48, 64)), draw.one((16, 32, 64, 96))
        sizes = {"BATCH": (2, 1, batch, batch - 1), "CHANNELS": (2, 3, channels, channels - 1), "OUT": (4, 2, out, out - 3)}
        return ("BATCH", "CHANNELS", "HEIGHT", "WIDTH"), sizes | {
            "HEIGHT": (4, 9, height, height + 1),
            "WIDTH": (8, 11, height, height + 3),
        }
    rows, cols = draw.one((256, 512, 1024, 2048, 4096, 8192)), draw.one((256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096))
    if product:
        outer = draw.one((64, 96, 128, 192, 256)) if kind == "gemm_row" else draw.one((256, 512, 768, 1024, 2048))
        inner = draw.one((256, 384, 512, 768, 1024))
        sizes = {"ROWS": (32, 19, rows, rows - 3), "INNER": (32, 69, inner, inner - 1), "OUTER": (16, 21, outer, outer - 5)}
        return ("ROWS", "INNER"), sizes
    ragged = 29 if kind == "elementwise" else 5  # 29 x 37 is more than one block
    if draw.one((True, False, False)):
        batch, length = draw.one((4, 8, 16, 32)), draw.one((64, 128, 256, 512))
        sizes = {"BATCH": (2, ragged, batch, batch - 1), "LENGTH": (4, 1, length, length + 1)}
        return ("BATCH", "LENGTH", "COLS"), sizes | {"COLS": (64, 37, cols, cols - cols // 5 - 1)}
    return ("ROWS", "COLS"), {"ROWS": (8, ragged, rows, rows - 3), "COLS": (64, 37, cols, cols - cols // 5 - 1)}
